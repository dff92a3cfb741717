"""Pattern recognition in text: undo a shift of letters."""

import random
import string


class CaesarEnv:
    WORDS = ("river", "stone", "cloud", "forest", "candle", "garden", "mirror", "silver", "window", "yellow")

    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.word = rng.choice(self.WORDS)
        shift = rng.randrange(3, 20)
        letters = string.ascii_lowercase
        secret = "".join(letters[(letters.index(ch) + shift) % 26] for ch in self.word)
        self.over = False
        return f"Each letter was moved {shift} places on in the alphabet: {secret}. What was the word?", {}

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.over = True
        right = action.strip().lower() == self.word
        return ("Right." if right else "Wrong."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [self.word]
