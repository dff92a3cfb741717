"""Exact fractions: a chain of operations, answered in lowest terms."""

import random
from fractions import Fraction


class FractionsChainEnv:
    def __init__(self, max_turns=25):
        self.value = None

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.value = Fraction(rng.randrange(1, 9), rng.randrange(2, 9))
        text = f"{self.value.numerator}/{self.value.denominator}"
        for _ in range(3):
            other = Fraction(rng.randrange(1, 9), rng.randrange(2, 9))
            sign = rng.choice("+-*")
            self.value = {"+": self.value + other, "-": self.value - other, "*": self.value * other}[sign]
            text = f"({text} {sign} {other.numerator}/{other.denominator})"
        return f"Work out {text}. Answer as <answer>A/B</answer> in lowest terms.", {}

    def step(self, action):
        value, self.value = self.value, None
        right = value is not None and action.strip() == f"<answer>{value.numerator}/{value.denominator}</answer>"
        return ("right" if right else "wrong"), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [f"<answer>{self.value.numerator}/{self.value.denominator}</answer>"]
