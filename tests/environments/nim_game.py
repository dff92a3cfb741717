"""A game against a perfect player over several turns: only the right moves win."""

import random
from functools import reduce
from operator import xor


class NimEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        while True:
            self.heaps = [rng.randrange(1, 8) for _ in range(4)]
            if reduce(xor, self.heaps) != 0:
                break
        self.turns = 0
        self.over = False
        return f"Heaps {self.heaps}. Say 'HEAP COUNT', heaps counted from 1. Who takes the last piece wins.", {}

    @staticmethod
    def best_move(heaps):
        total = reduce(xor, heaps)
        for place, heap in enumerate(heaps):
            if total and heap ^ total < heap:
                return place, heap - (heap ^ total)
        largest = max(range(len(heaps)), key=lambda place: heaps[place])
        return largest, 1

    def step(self, action):
        if self.over:
            return "The game is over.", 0.0, True, False, {}
        self.turns += 1
        parts = action.split()
        numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 3]
        legal = len(parts) == len(numbers) == 2 and 1 <= numbers[0] <= 4 and 1 <= numbers[1] <= self.heaps[numbers[0] - 1]
        if not legal or self.turns >= self.max_turns:
            self.over = True
            return "Not a legal move: lost.", -1.0, True, False, {}
        self.heaps[numbers[0] - 1] -= numbers[1]
        if not any(self.heaps):
            self.over = True
            return "You took the last piece.", 1.0, True, False, {}
        place, count = self.best_move(self.heaps)
        self.heaps[place] -= count
        if not any(self.heaps):
            self.over = True
            return "I took the last piece.", -0.5, True, False, {}
        return f"I take {count} from heap {place + 1}: {self.heaps}", 0.0, False, False, {}

    def solution(self):
        heaps, moves = list(self.heaps), []
        while any(heaps):
            place, count = self.best_move(heaps)
            heaps[place] -= count
            moves.append(f"{place + 1} {count}")
            if any(heaps):
                place, count = self.best_move(heaps)
                heaps[place] -= count
        return moves
