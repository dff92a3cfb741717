"""Pattern Recognition: two sequences run through each other; what comes next in both."""

import random


class NextNumbersEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        first, second = self.sequence(rng), self.sequence(rng)
        mixed = [number for pair in zip(first, second, strict=True) for number in pair]
        self.goal = (mixed[8], mixed[9])
        self.turns = 0
        self.over = False
        shown = ", ".join(map(str, mixed[:8]))
        return (
            f"Two rules take turns in this sequence: {shown}, ... Each rule adds the same number every time, or doubles and then "
            "adds the same number. Which two numbers come next? Answer with \\boxed{FIRST, SECOND}.",
            {},
        )

    def sequence(self, rng):
        number, more, doubled = rng.randrange(1, 20), rng.randrange(2, 15), rng.randrange(2)
        numbers = []
        for _ in range(5):
            numbers.append(number)
            number = (2 * number if doubled else number) + more
        return numbers

    def step(self, action):
        if self.over:
            return "The sequence has ended.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if not (text.startswith("\\boxed{") and text.endswith("}")):
            self.over = self.turns >= min(3, self.max_turns)
            return "Put the two numbers into \\boxed{}.", 0.0, False, self.over, {}
        self.over = True
        right = text[7:-1].replace(" ", "") == f"{self.goal[0]},{self.goal[1]}"
        return ("Both are right." if right else "No."), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [f"\\boxed{{{self.goal[0]}, {self.goal[1]}}}"]
