"""Logical Deduction: all but one are ruled out."""

import random


class WhoIsLeftEnv:
    NAMES = ("Anna", "Ben", "Carl", "Dora", "Emil", "Frida", "Greta", "Hugo", "Ida", "Jonas", "Karla", "Leo")

    def __init__(self, max_turns=25):
        self.over = True
        self.answer = ""

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.over = False
        names = rng.sample(self.NAMES, 3)
        self.answer = names[1]
        first, last = rng.sample([names[0], names[2]], 2)
        shown = ", ".join(sorted(names))
        return (
            f"One of {shown} has the key. It is not {first}. It is not {last}. Write who has it inside \\boxed{{}}. "
            "For example, of Mia, Nils and Olga, if it is not Mia and not Olga, the whole answer is \\boxed{Nils}"
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
