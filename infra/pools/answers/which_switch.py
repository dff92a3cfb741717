"""Causal Inference: the switch that lights the lamp is named."""

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
        seen = " ".join(f"{one}: lamp {'on' if one == self.answer else 'off'}." for one in colours)
        return (
            "Write the answer in the form \\boxed{answer}.\n\n"
            "Example:\npink: lamp on. gold: lamp off. Which one lights the lamp?\n\\boxed{pink}\n\n"
            f"Now you:\n{seen} Which one lights the lamp?"
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
