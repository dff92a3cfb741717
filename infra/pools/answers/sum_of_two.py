"""Mathematical Reasoning: two small numbers are added."""

import random


class SumOfTwoEnv:
    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        left, right = rng.randint(1, 20), rng.randint(1, 20)
        self.answer = str(left + right)
        return (
            f"Write the answer in the form \\boxed{{answer}}.\n\nExample:\n2 + 3\n\\boxed{{5}}\n\nNow you:\n{left} + {right}"
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
