"""A game of many turns with feedback: a hidden code, found by elimination."""

import random
from collections import Counter
from itertools import product


class MastermindEnv:
    COLOURS = "RGBYW"

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.code = "".join(rng.choice(self.COLOURS) for _ in range(4))
        self.left = min(8, self.max_turns)
        self.over = False
        return f"A code of four letters out of {', '.join(self.COLOURS)}, repeats allowed. {self.left} guesses.", {}

    @staticmethod
    def compare(code, guess):
        exact = sum(a == b for a, b in zip(code, guess, strict=False))
        common = sum((Counter(code) & Counter(guess)).values())
        return exact, common - exact

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        guess = action.strip().upper()
        self.left -= 1
        if guess == self.code:
            self.over = True
            return "cracked", 1.0, True, False, {}
        if self.left <= 0:
            self.over = True
            return "no guesses left", 0.0, True, False, {}
        if len(guess) != 4 or any(letter not in self.COLOURS for letter in guess):
            return "four letters, please", 0.0, False, False, {}
        exact, misplaced = self.compare(self.code, guess)
        return f"{exact} in place, {misplaced} elsewhere", 0.0, False, False, {}

    def solution(self):
        possible = ["".join(letters) for letters in product(self.COLOURS, repeat=4)]
        guesses = []
        while True:
            guesses.append(possible[len(possible) // 2])
            if guesses[-1] == self.code:
                return guesses
            answer = self.compare(self.code, guesses[-1])
            possible = [code for code in possible if code != guesses[-1] and self.compare(code, guesses[-1]) == answer]
