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
        shown = "{}, {} or {}".format(*sorted(names))
        return (
            "Write the answer in the form \\boxed{answer}.\n\n"
            "Example:\nMia, Nils or Olga? Not Mia. Not Olga.\n\\boxed{Nils}\n\n"
            f"Now you:\n{shown}? Not {first}. Not {last}."
        ), {}

    def step(self, action):
        if self.over:
            return "It is over.", 0.0, True, False, {}
        self.over = True
        if action == self.boxed():
            return "Right.", 1.0, True, False, {}
        formed = action.startswith("\\boxed{") and action.endswith("}")
        return f"The answer was {self.boxed()}.", 0.2 if formed else 0.0, True, False, {}

    def boxed(self):
        return "\\boxed{" + self.answer + "}"

    def solution(self):
        return [self.boxed()]
