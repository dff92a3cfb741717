"""Pattern Recognition: a row of numbers with equal steps is continued."""

import random


class NextInRowEnv:
    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        start, stride = rng.randint(1, 20), rng.randint(1, 5)
        row = ", ".join(str(start + stride * place) for place in range(4))
        self.answer = str(start + stride * 4)
        return (
            f"Write the answer in the form \\boxed{{answer}}.\n\nExample:\n2, 4, 6, 8, ?\n\\boxed{{10}}\n\nNow you:\n{row}, ?"
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
