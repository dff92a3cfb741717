"""The answer stands among the observed values, at a place that has to be worked out."""

import random


class RankEnv:
    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        values = rng.sample(range(100, 999), 9)
        rank = rng.randrange(1, 10)
        self.answer = sorted(values)[rank - 1]
        self.over = False
        return f"Values {values}. Which is number {rank} in increasing order?", {}

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.over = True
        digits = "".join(ch for ch in action if ch in "0123456789")
        right = digits == str(self.answer)
        return ("Right." if right else "Wrong."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [str(self.answer)]
