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
            f"Which number comes next: {row}? Write it inside \\boxed{{}}. "
            "For example, after 2, 4, 6, 8 the whole answer is \\boxed{10}"
        ), {}

    def step(self, action):
        if self.over:
            return "It is over.", 0.0, True, False, {}
        self.over = True
        won = action.strip() == self.boxed()
        return ("Right." if won else f"The answer was {self.boxed()}."), float(won), True, False, {}

    def boxed(self):
        return "\\boxed{" + self.answer + "}"

    def solution(self):
        return [self.boxed()]
