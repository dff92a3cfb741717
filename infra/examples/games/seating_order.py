"""Logical Deduction: the one order of five people in a row that fits all clues."""

import random
from itertools import permutations


class SeatingOrderEnv:
    NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hilda")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        names = rng.sample(self.NAMES, 5)
        self.order = list(names)
        possible = list(permutations(sorted(names)))
        clues = []
        while len(possible) > 1:
            clue, test = self.clue(rng)
            fitting = [order for order in possible if test(order)]
            if len(fitting) < len(possible):
                clues.append(clue)
                possible = fitting
        self.turns = 0
        self.over = False
        return (
            f"Five people sit in a row, seats 1 to 5 from the left: {', '.join(sorted(names))}. {' '.join(clues)} "
            "Who sits where? Answer with the names from seat 1 to seat 5, as in \\boxed{A B C D E}.",
            {},
        )

    def clue(self, rng):
        one, other = rng.sample(self.order, 2)
        here, there = self.order.index(one), self.order.index(other)
        kind = rng.randrange(3)
        if kind == 0 and abs(here - there) > 1:
            return f"{one} does not sit next to {other}.", lambda order: abs(order.index(one) - order.index(other)) > 1
        if kind == 1 and abs(here - there) == 1:
            return f"{one} sits next to {other}.", lambda order: abs(order.index(one) - order.index(other)) == 1
        left, right = (one, other) if here < there else (other, one)
        return f"{left} sits further left than {right}.", lambda order: order.index(left) < order.index(right)

    def step(self, action):
        if self.over:
            return "The row has been settled.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if not (text.startswith("\\boxed{") and text.endswith("}")):
            self.over = self.turns >= min(3, self.max_turns)
            return "Put the five names into \\boxed{}.", 0.0, False, self.over, {}
        self.over = True
        right = text[7:-1].split() == self.order
        return ("All sit where they should." if right else "Not so."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return ["\\boxed{" + " ".join(self.order) + "}"]
