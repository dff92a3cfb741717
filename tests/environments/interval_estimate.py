"""Partial credit by distance: an estimate near the mean earns something, the mean itself earns all."""

import random
import re


class IntervalEstimateEnv:
    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        values = [rng.randrange(100, 5000) for _ in range(5)]
        self.total = sum(values)
        self.over = False
        return "Add up " + " + ".join(map(str, values)) + ". Write only the number; near misses earn a little.", {}

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        self.over = True
        text = action.strip()
        if not re.fullmatch(r"[0-9]{1,9}", text):
            return "that is no number", -0.2, True, False, {}
        miss = abs(int(text) - self.total)
        reward = 1.0 if miss == 0 else 0.5 if miss <= 10 else 0.2 if miss <= 100 else 0.0
        return f"off by {miss}", reward, True, False, {}

    def solution(self):
        return [str(self.total)]
