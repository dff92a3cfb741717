"""Spatial reading: a word lies in a square of letters, down or across; its place is the answer."""

import random
import string


class AnagramGridEnv:
    WORDS = ("lamp", "tree", "bird", "moon", "fish", "door", "wind", "sand")

    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        word = rng.choice(self.WORDS)
        size = 7
        grid = [[rng.choice(string.ascii_lowercase[:12]) for _ in range(size)] for _ in range(size)]
        self.row, self.column = rng.randrange(size), rng.randrange(size - len(word) + 1)
        down = rng.random() < 0.5
        if down:
            self.row, self.column = self.column, self.row
        for offset, letter in enumerate(word):
            grid[self.row + offset * down][self.column + offset * (not down)] = letter
        self.over = False
        text = "\n".join("".join(line) for line in grid)
        return f"{text}\nWhere does '{word}' begin? Answer ROW,COLUMN counted from 0.", {}

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        self.over = True
        right = action.replace(" ", "") == f"{self.row},{self.column}"
        return ("found" if right else "not there"), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [f"{self.row},{self.column}"]
