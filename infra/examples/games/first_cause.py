"""Causal Inference: experiments on a machine show which of its parts drives all others."""

import random


class FirstCauseEnv:
    PARTS = ("boiler", "fan", "gauge", "lamp", "motor", "pump", "valve", "wheel")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.parts = rng.sample(self.PARTS, 7)
        # every part but the first is driven by one that stands before it
        self.driver = {part: self.parts[rng.randrange(place)] for place, part in enumerate(self.parts) if place}
        self.left = min(6, self.max_turns)
        self.over = False
        return (
            f"A machine has the parts {', '.join(sorted(self.parts))}. One of them runs by itself and drives the rest, some "
            f"of them through others. You have {self.left} turns: stop a part with \\boxed{{stop PART}} and see which parts "
            "stand still with it (all run again afterwards), or name the one that drives the rest with \\boxed{cause PART}.",
            {},
        )

    def still(self, stopped):
        standing = {stopped}
        for part in self.parts:
            if self.driver.get(part) in standing:
                standing.add(part)
        return sorted(standing)

    def step(self, action):
        if self.over:
            return "The machine is switched off.", 0.0, True, False, {}
        self.left -= 1
        text = action.strip()
        words = text[7:-1].split(" ") if text.startswith("\\boxed{") and text.endswith("}") else []
        if len(words) == 2 and words[0] == "cause" and words[1] in self.parts:
            self.over = True
            right = words[1] == self.parts[0]
            return ("It does drive the rest." if right else "It does not."), (1.0 if right else 0.0), True, False, {}
        if self.left <= 0:
            self.over = True
            return "No turns are left.", 0.0, True, False, {}
        if len(words) == 2 and words[0] == "stop" and words[1] in self.parts:
            return f"Standing still: {', '.join(self.still(words[1]))}.", 0.0, False, False, {}
        return "Write \\boxed{stop PART} or \\boxed{cause PART}.", 0.0, False, False, {}

    def solution(self):
        return ["\\boxed{stop " + self.parts[1] + "}", "\\boxed{cause " + self.parts[0] + "}"]
