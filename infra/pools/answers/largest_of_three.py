"""Optimization: the dearest of three offers is named."""

import random


class LargestOfThreeEnv:
    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        prices = rng.sample(range(10, 100), 3)
        self.answer = str(max(prices))
        return (
            f"Three shops pay {prices[0]}, {prices[1]} and {prices[2]} coins. Write the highest price inside \\boxed{{}}. "
            "For example, for 14, 72 and 31 the whole answer is \\boxed{72}"
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
