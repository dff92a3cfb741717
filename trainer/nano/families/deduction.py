"""Logical Deduction: following rules to their end, truth tables bit by bit, and finding a hidden number by halving."""

import re
from collections.abc import Callable
from random import Random

from infra.dialects.words import FAMILY_WORDS
from trainer.nano.family import Family, Program

_OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "xor": ("$x ^ $y", lambda x, y: x ^ y),
    "and": ("$x & $y", lambda x, y: x & y),
    "or": ("$x | $y", lambda x, y: x | y),
    "nand": ("1 - $x * $y", lambda x, y: 1 - x * y),
}


def draw_links(rng: Random, phrases: tuple[str, ...], joint: str, goal: str, shown: str) -> Program:
    """Letters in a chain of `size` links and a second, shorter chain beside it; `shown` and `goal` are places in the chain.
    `joint` is the word before the links, by which a reader can tell the direction."""
    more = rng.choice((3, 4, 5))
    return Program(
        reset="""        $r = random.Random(seed)
        $p = $r.sample(string.ascii_uppercase, self.size + $more)
        $e = [$p[$i] + $p[$i + 1] for $i in range(self.size + $pairs) if $i != self.size]
        $r.shuffle($e)
        self.goal = $p[$goal]
        return "$phrase " + $p[$shown] + " $joint " + " ".join($e), {}
""",
        values=(
            ("phrase", rng.choice(phrases)),
            ("joint", joint),
            ("goal", goal),
            ("shown", shown),
            ("more", str(more)),
            ("pairs", str(more - 1)),
        ),
        needs_string=True,
    )


def _draw_follow(rng: Random, size: int) -> Program:
    return draw_links(rng, ("follow", "what comes of", "conclude from"), "by", goal="self.size", shown="0")


def _work_follow(observation: str) -> str:
    links = dict(re.findall(r"\b([A-Z])([A-Z])\b", observation))
    at = re.search(r"([A-Z]) by", observation).group(1)  # type: ignore[union-attr]  # documented to raise
    said = at
    while at in links:
        at = links[at]
        said += at
    return said


def _draw_logic(rng: Random, size: int) -> Program:
    word = rng.choice(tuple(_OPERATIONS))
    expression = _OPERATIONS[word][0]
    reset = """        $r = random.Random(seed)
        $a = [$r.randrange(2) for _ in range(self.size)]
        $b = [$r.randrange(2) for _ in range(self.size)]
        self.goal = "".join(str(EXPRESSION) for $x, $y in zip($a, $b))
        return "$phrase " + "".join(map(str, $a)) + " " + "".join(map(str, $b)), {}
"""
    return Program(reset=reset.replace("EXPRESSION", expression), values=(("phrase", word),))


def _work_logic(observation: str) -> str:
    word, first, second = observation.split()
    rule = _OPERATIONS[word][1]
    return " ".join(f"{a}{b}={rule(int(a), int(b))}" for a, b in zip(first, second, strict=True))


def _draw_guess(rng: Random, size: int) -> Program:
    return Program(
        reset="""        self.top = 6 * self.size
        self.goal = random.Random(seed).randint(1, self.top)
        self.left = min(self.turns, self.top.bit_length())
        return f"$phrase 1 to {self.top}", {}
""",
        values=(("phrase", rng.choice(("guess", "find", "hidden number"))),),
        init="self.turns, self.top, self.left = max_turns, 0, 0",
        tail="""
    def step(self, action):
        $w = [str($i) for $i in range(self.top + 1)]
        $n = $w.index(action) if action in $w else 0
        won = self.left > 0 and $n == self.goal
        self.left = 0 if won else self.left - 1
        $t = "right" if won else "higher" if $n < self.goal else "lower"
        return $t, float(won), self.left < 1, False, {}

    def solution(self):
        return [str(self.goal)]
""",
    )


def _work_guess(observation: str) -> str:
    low, high = re.search(r"(\d+) to (\d+)", observation).groups()  # type: ignore[union-attr]  # documented to raise
    return f"{low} to {high}"


FAMILIES = (
    Family(
        name="follow",
        skill="Logical Deduction",
        sizes=(2, 9),
        easy=(2, 3),
        keywords=FAMILY_WORDS["follow"],
        hints=("write every link until none is left", "go link by link and write each", "chain the links in their turn"),
        draw=_draw_follow,
        work=_work_follow,
        practice=1.6,
    ),
    Family(
        name="logic",
        skill="Logical Deduction",
        sizes=(2, 9),
        easy=(2, 3),
        keywords=FAMILY_WORDS["logic"],
        hints=("pair the bits and write each result", "compare the bits pair by pair", "work through the pairs in order"),
        draw=_draw_logic,
        work=_work_logic,
        practice=0.7,
    ),
    Family(
        name="guess",
        skill="Logical Deduction",
        sizes=(2, 9),
        easy=(2, 3),
        keywords=FAMILY_WORDS["guess"],
        hints=("halve the range", "keep the range and try its middle", "note what is still possible and split it"),
        draw=_draw_guess,
        work=_work_guess,
        practice=0.5,
    ),
)
