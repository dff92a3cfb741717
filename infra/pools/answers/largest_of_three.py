"""Optimization: the largest of three numbers is named."""

import random


class LargestOfThreeEnv:
    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        numbers = rng.sample(range(10, 100), 3)
        self.answer = str(max(numbers))
        return (
            "Write the answer in the form \\boxed{answer}.\n\n"
            "Example:\nlargest of 14, 72, 31\n\\boxed{72}\n\n"
            f"Now you:\nlargest of {numbers[0]}, {numbers[1]}, {numbers[2]}"
        ), {}

    def step(self, action):
        if self.over:
            return "It is over.", 0.0, True, False, {}
        self.over = True
        if action == self.boxed():
            return "Right.", 1.0, True, False, {}
        formed = action.startswith("\\boxed{") and action.endswith("}")
        return f"The answer was {self.boxed()}.", 0.2 if formed else 0.0, True, False, {}

    def boxed(self):
        return "\\boxed{" + self.answer + "}"

    def solution(self):
        return [self.boxed()]
