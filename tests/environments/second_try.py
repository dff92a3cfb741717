"""Two attempts: the first wrong answer is told to be too small or too large, the second earns less."""

import random


class SecondTryEnv:
    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        a, b, c = rng.randrange(11, 60), rng.randrange(3, 12), rng.randrange(20, 99)
        self.answer = a * b - c
        self.tries = 0
        self.over = False
        return f"Work out {a} * {b} - {c}. Two tries; the second is worth half.", {}

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        self.tries += 1
        text = action.strip()
        digits = text[1:] if text.startswith("-") else text
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 6 else None
        if value == self.answer:
            self.over = True
            return "right", (1.0 if self.tries == 1 else 0.5), True, False, {}
        if self.tries == 2:
            self.over = True
            return f"wrong, it was {self.answer}", 0.0, True, False, {}
        told = "that is no whole number" if value is None else "too small" if value < self.answer else "too large"
        return told, 0.0, False, False, {}

    def solution(self):
        return [str(self.answer)]
