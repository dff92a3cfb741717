"""Deduction: who tells the truth, worked out from statements; a fixed form of answer."""

import random
from itertools import product


class TruthTellersEnv:
    NAMES = ("Ann", "Bob", "Cid", "Dee")

    def __init__(self, max_turns=25):
        self.answer = None

    def reset(self, seed=None):
        rng = random.Random(seed)
        while True:
            claims = [(rng.choice(("is", "count")), rng.randrange(4), rng.random() < 0.5) for _ in self.NAMES]
            worlds = [world for world in product((True, False), repeat=4) if self.fits(world, claims)]
            if len(worlds) == 1 and 0 < sum(worlds[0]) < 4:
                break
        self.answer = "".join("T" if honest else "L" for honest in worlds[0])
        said = "; ".join(f"{name}: {self.tell(claim)}" for name, claim in zip(self.NAMES, claims, strict=True))
        order = ", ".join(self.NAMES)
        return f"{said}. Each of {order} always lies or never does. Answer with four letters T or L in that order.", {}

    def tell(self, claim):
        kind, number, honest = claim
        if kind == "count":
            return f"exactly {number} of us tell the truth"
        return f"{self.NAMES[number]} is a {'truth-teller' if honest else 'liar'}"

    def fits(self, world, claims):
        for speaker, (kind, number, honest) in zip(world, claims, strict=True):
            true = sum(world) == number if kind == "count" else world[number] == honest
            if true != speaker:
                return False
        return True

    def step(self, action):
        right = self.answer is not None and action.strip().upper() == self.answer
        self.answer = None
        return ("yes" if right else "no"), float(right), True, False, {}

    def solution(self):
        return [self.answer]
