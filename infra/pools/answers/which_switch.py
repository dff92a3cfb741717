"""Causal Inference: the switch that changes the lamp is named."""

import random


class WhichSwitchEnv:
    COLOURS = ("red", "blue", "green", "black", "white", "brown", "yellow", "grey")

    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        colours = rng.sample(self.COLOURS, 3)
        self.answer = rng.choice(colours)
        seen = [f"The {one} switch: the lamp {'changes' if one == self.answer else 'stays'}." for one in colours]
        return (
            f"{' '.join(seen)} Which switch drives the lamp? Write its colour inside \\boxed{{}}. "
            "For example, if only the pink switch changes it, the whole answer is \\boxed{pink}"
        ), {}

    def step(self, action):
        if self.over:
            return "It is over.", 0.0, True, False, {}
        self.over = True
        won = action.strip() == self.boxed()
        return ("Right." if won else f"The answer was {self.boxed()}."), float(won), True, False, {}

    def boxed(self):
        return "\\boxed{" + self.answer + "}"

    def solution(self):
        return [self.boxed()]
