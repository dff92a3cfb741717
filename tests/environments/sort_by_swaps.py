"""State that moves change: sort a row by swaps in as few moves as it takes."""

import random


class SortBySwapsEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        row = list(range(1, 7))
        while self.needed(row) < 3:
            rng.shuffle(row)
        self.row = row
        self.left = self.needed(row)
        self.over = False
        return f"Row {self.row}. Sort it with {self.left} swaps; a swap is two places such as '2 5'.", {}

    @staticmethod
    def needed(row):
        seen, cycles = set(), 0
        for start in range(len(row)):
            if start not in seen:
                cycles += 1
                place = start
                while place not in seen:
                    seen.add(place)
                    place = row[place] - 1
        return len(row) - cycles

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        places = [int(word) - 1 for word in action.split() if word in ("1", "2", "3", "4", "5", "6")]
        self.left -= 1
        if len(places) == 2:
            a, b = places
            self.row[a], self.row[b] = self.row[b], self.row[a]
        if self.row == sorted(self.row):
            self.over = True
            return "sorted", 1.0, True, False, {}
        if self.left <= 0:
            self.over = True
            return f"not sorted: {self.row}", 0.0, True, False, {}
        return f"Row {self.row}, {self.left} swaps left.", 0.0, False, False, {}

    def solution(self):
        row, swaps = list(self.row), []
        for place in range(len(row)):
            while row[place] != place + 1:
                target = row[place] - 1
                row[place], row[target] = row[target], row[place]
                swaps.append(f"{place + 1} {target + 1}")
        return swaps
