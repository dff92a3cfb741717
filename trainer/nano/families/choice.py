"""Optimization: the offer of a wanted rank, the cheapest of several totals, and the least price among those asked for in turn."""

import re
from random import Random

from infra.dialects.words import FAMILY_WORDS
from trainer.nano.family import Family, Program


def _draw_kth(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $s = $r.sample(string.ascii_uppercase, self.size)
        $k = $r.randrange(self.size)
        self.goal = sorted($s)[$k]
        return f"$phrase {$k + 1} of {''.join($s)}", {}
""",
        values=(("phrase", rng.choice(("rank", "place", "grade"))),),
        needs_string=True,
    )


def _work_kth(observation: str) -> str:
    rank, row = re.search(r"(\d+) of ([A-Z]+)", observation).groups()  # type: ignore[union-attr]  # documented to raise
    return "".join(f"{index}{letter}" for index, letter in enumerate(sorted(row)[: int(rank)], start=1))


def _draw_cheap(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $s = $r.sample(string.ascii_uppercase, self.size)
        $c = {$x: [$r.randrange(5), $r.randrange(5)] for $x in $s}
        self.goal = min($s, key=lambda $x: sum($c[$x]))
        return "$phrase " + " ".join(f"{$x}{$c[$x][0]}+{$c[$x][1]}" for $x in $s), {}
""",
        values=(("phrase", rng.choice(("cheapest of", "least of", "best price"))),),
        needs_string=True,
    )


def _work_cheap(observation: str) -> str:
    offers = re.findall(r"([A-Z])(\d)\+(\d)", observation)
    return "".join(f"{name}{int(a) + int(b)}" for name, a, b in offers)


def _draw_ask(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $s = $r.sample(string.ascii_uppercase, self.size)
        self.prices = dict(zip($s, $r.sample(range($most), self.size)))
        self.goal = min($s, key=lambda $x: self.prices[$x])
        self.left = self.size + 1
        return "$phrase " + "".join($s), {}
""",
        values=(
            ("phrase", rng.choice(("least price of", "who asks least of", "best offer of"))),
            ("most", "10" if size < 10 else "99"),
        ),
        needs_string=True,
        init="self.goal, self.left, self.prices = None, 0, {}",
        tail="""
    def step(self, action):
        $n = action[1:]
        $a = action[:1] == "?" and $n in self.prices
        won = self.left > 0 and action == self.goal
        self.left = self.left - 1 if $a else 0
        $t = str(self.prices[$n]) if $a else "right" if won else "wrong"
        return $t, float(won), self.left < 1, False, {}

    def solution(self):
        return [self.goal]
""",
    )


def _work_ask(observation: str) -> str:
    return re.search(r"of ([A-Z]+)", observation).group(1)  # type: ignore[union-attr]  # documented to raise


FAMILIES = (
    Family(
        name="kth",
        skill="Optimization",
        sizes=(3, 9),
        easy=(3, 4),
        keywords=FAMILY_WORDS["kth"],
        hints=("write them in order with their ranks", "sort first and number the places", "list the letters from the first on"),
        draw=_draw_kth,
        work=_work_kth,
        practice=0.8,
    ),
    Family(
        name="cheap",
        skill="Optimization",
        sizes=(3, 9),
        easy=(3, 4),
        keywords=FAMILY_WORDS["cheap"],
        hints=("write every total first", "add up each offer before you choose", "list the totals and take the least"),
        draw=_draw_cheap,
        work=_work_cheap,
        practice=1.6,
    ),
    Family(
        name="ask",
        skill="Optimization",
        sizes=(2, 9),
        easy=(2, 3),
        keywords=FAMILY_WORDS["ask"],
        hints=("ask every dealer before you choose", "put a question to each of them", "call them all and keep the least"),
        draw=_draw_ask,
        work=_work_ask,
        practice=1.0,
    ),
)
