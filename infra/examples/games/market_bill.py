"""Mathematical Reasoning: what is left of the money after a shopping list with a discount."""

import random


class MarketBillEnv:
    GOODS = ("apples", "candles", "eggs", "lamps", "nails", "ropes", "stamps")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        lines, total = [], 0
        for goods in rng.sample(self.GOODS, 4):
            count, price = rng.randrange(2, 10), rng.randrange(3, 25)
            lines.append(f"{count} {goods} at {price} coins each")
            total += count * price
        free = rng.randrange(5, 20)
        paid = total - free + rng.randrange(10, 90)
        self.left = str(paid - (total - free))
        self.turns = 0
        self.over = False
        return (
            f"You buy {', '.join(lines)}. The seller takes {free} coins off the bill, and you pay with {paid} coins. "
            "How many coins do you get back? Answer with \\boxed{NUMBER}.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The shop is closed.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if not (text.startswith("\\boxed{") and text.endswith("}")):
            self.over = self.turns >= min(3, self.max_turns)
            return "Put the number into \\boxed{}.", 0.0, False, self.over, {}
        self.over = True
        right = text == "\\boxed{" + self.left + "}"
        return ("Right." if right else "Wrong."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return ["\\boxed{" + self.left + "}"]
