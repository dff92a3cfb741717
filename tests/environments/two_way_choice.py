"""A two-way choice: a fair coin is right half the time."""

import random


class ParityEnv:
    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        numbers = [rng.randrange(100) for _ in range(6)]
        self.right = "even" if sum(numbers) % 2 == 0 else "odd"
        self.over = False
        return "Is the sum of " + ", ".join(map(str, numbers)) + " even or odd?", {}

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.over = True
        right = action.strip().lower() == self.right
        return ("Yes." if right else "No."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [self.right]
