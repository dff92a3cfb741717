"""Spatial Reasoning: the neighbour of a thing in a row is named."""

import random


class WhereItLiesEnv:
    THINGS = ("apple", "book", "cup", "drum", "egg", "fork", "glove", "hat", "jar", "key")

    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        things = rng.sample(self.THINGS, 3)
        self.answer = things[2]
        return (
            "Write the answer in the form \\boxed{answer}.\n\n"
            "Example:\npen, lamp, ring. What comes after lamp?\n\\boxed{ring}\n\n"
            f"Now you:\n{', '.join(things)}. What comes after {things[1]}?"
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
