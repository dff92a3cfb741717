"""Random but seeded: measurements with noise that the seed decides, drawn while the episode goes on."""

import random
import statistics


class NoisySignalEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.level = self.rng.randrange(20, 400)
        self.measured = []
        self.plan = [round(self.rng.gauss(self.level, 6), 1) for _ in range(6)]
        self.over = False
        return "Say 'measure' up to six times; then say the median of what you measured, with one decimal.", {}

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        text = action.strip()
        if text == "measure" and len(self.measured) < 6:
            self.measured.append(self.plan[len(self.measured)])
            return f"{self.measured[-1]}", 0.0, False, False, {}
        self.over = True
        enough = len(self.measured) >= 5
        right = enough and text == f"{statistics.median(self.measured):.1f}"
        return ("right" if right else "wrong"), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return ["measure"] * 6 + [f"{statistics.median(self.plan):.1f}"]
