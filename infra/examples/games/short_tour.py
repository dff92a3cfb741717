"""Optimization: the cheapest order in which a courier visits five houses."""

import random
from itertools import permutations


class ShortTourEnv:
    HOUSES = "ABCDE"

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        places = ["depot", *self.HOUSES]
        self.minutes = {}
        lines = []
        for index, one in enumerate(places):
            for other in places[index + 1 :]:
                self.minutes[one, other] = self.minutes[other, one] = rng.randrange(2, 40)
                lines.append(f"{one}-{other} {self.minutes[one, other]}")
        self.best = min(permutations(self.HOUSES), key=self.cost)
        self.turns = 0
        self.over = False
        return (
            f"Minutes between places: {', '.join(lines)}. A courier starts at the depot and visits every house once, without "
            "going back to the depot. Which order takes the fewest minutes? Answer with the letters in order, as in "
            "\\boxed{EDCBA}.",
            {},
        )

    def cost(self, order):
        return sum(self.minutes[one, other] for one, other in zip(("depot", *order), order, strict=False))

    def step(self, action):
        if self.over:
            return "The courier is home.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        order = text[7:-1] if text.startswith("\\boxed{") and text.endswith("}") else ""
        if sorted(order) != list(self.HOUSES):
            self.over = self.turns >= min(3, self.max_turns)
            return "Name every house once, in \\boxed{}.", 0.0, False, self.over, {}
        self.over = True
        taken, fewest = self.cost(order), self.cost(self.best)
        return f"That takes {taken} minutes.", (1.0 if taken == fewest else 0.0), True, False, {}

    def solution(self):
        return ["\\boxed{" + "".join(self.best) + "}"]
