"""A one-step puzzle: add two numbers."""

import random


class SumEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.answer = 0
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        a, b = rng.randrange(10, 90), rng.randrange(10, 90)
        self.answer = a + b
        self.over = False
        return f"Add {a} and {b}. Answer in \\boxed{{}}.", {}

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.over = True
        right = action.strip() == "\\boxed{" + str(self.answer) + "}"
        return ("Right." if right else "Wrong."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return ["\\boxed{" + str(self.answer) + "}"]
