"""Optimum by search: the best load under a limit; a worse load that fits earns part of it."""

import random
from itertools import combinations


class KnapsackEnv:
    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.items = {name: (rng.randrange(2, 15), rng.randrange(5, 60)) for name in "ABCDEFG"}
        self.limit = 22
        self.best = max(self.value(chosen) for size in range(1, 8) for chosen in combinations("ABCDEFG", size))
        self.over = False
        listed = ", ".join(f"{name} weighs {weight} and is worth {worth}" for name, (weight, worth) in self.items.items())
        return f"{listed}. Take what is worth most in all and weighs {self.limit} at most. Answer with letters only.", {}

    def value(self, chosen):
        weight = sum(self.items[name][0] for name in chosen)
        return sum(self.items[name][1] for name in chosen) if weight <= self.limit else 0

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        self.over = True
        letters = [letter for letter in action.upper() if letter in self.items]
        if not letters or len(letters) != len(set(letters)) or len(action) > 20:
            return "that is no choice", 0.0, True, False, {}
        worth = self.value(letters)
        # partial credit only near the optimum
        share = worth / self.best
        return f"worth {worth} of {self.best}", (1.0 if share == 1 else 0.4 if share > 0.9 else 0.0), True, False, {}

    def solution(self):
        sets = [chosen for size in range(1, 8) for chosen in combinations("ABCDEFG", size)]
        return ["".join(max(sets, key=self.value))]
