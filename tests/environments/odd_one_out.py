"""The answer is one of the shown words: which does not share the others' property."""

import random


class OddOneOutEnv:
    SYLLABLES = ("ba", "ko", "mi", "ru", "te", "sa", "lo", "ni", "fu", "de")

    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        shared = rng.choice(self.SYLLABLES)
        others = [syllable for syllable in self.SYLLABLES if syllable != shared]
        words = []
        while len(words) < 5:
            word = [rng.choice(others), shared]
            rng.shuffle(word)
            word.insert(rng.randrange(3), rng.choice(others))
            if "".join(word) not in words:
                words.append("".join(word))
        self.answer = "".join(rng.sample(others, 3))
        words.insert(rng.randrange(6), self.answer)
        self.over = False
        return f"All but one of these share a syllable: {' '.join(words)}. Which does not?", {}

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        self.over = True
        right = action.strip() == self.answer
        return ("that one" if right else "not that one"), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [self.answer]
