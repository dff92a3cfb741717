"""A game of several turns: find a number by halving."""

import random


class HigherLowerEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        self.target = random.Random(seed).randrange(1, 1000)
        self.left = min(self.max_turns, 12)
        self.over = False
        return f"I think of a number from 1 to 999. You have {self.left} guesses.", {}

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.left -= 1
        text = action.strip()
        guess = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else -1
        if guess == self.target:
            self.over = True
            return "Found.", 1.0, True, False, {}
        if self.left == 0:
            self.over = True
            return "No guesses left.", 0.0, True, False, {}
        return ("Higher." if guess < self.target else "Lower."), 0.0, False, False, {}

    def solution(self):
        low, high, actions = 1, 999, []
        while True:
            middle = (low + high) // 2
            actions.append(str(middle))
            if middle == self.target:
                return actions
            if middle < self.target:
                low = middle + 1
            else:
                high = middle - 1
