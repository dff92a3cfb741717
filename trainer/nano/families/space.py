"""Spatial Reasoning: a position after moves on a grid that wraps around, and mirrored rows with a gap closed."""

import re
from random import Random

from infra.dialects.words import FAMILY_WORDS
from trainer.nano.family import Family, Program


def _draw_walk(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $x, $y = $r.randrange(self.side), $r.randrange(self.side)
        $t = f"$phrase {self.side} at {$x}{$y} go "
        for _ in range(self.size):
            $d = $r.choice("$compass")
            $x = ($x + {"E": 1, "W": -1}.get($d, 0)) % self.side
            $y = ($y + {"N": 1, "S": -1}.get($d, 0)) % self.side
            $t += $d
        self.goal = f"{$x}{$y}"
        return $t, {}
""",
        fields=f"    side = {rng.randrange(5, 10)}\n",
        values=(
            ("phrase", rng.choice(("grid", "torus", "field"))),
            ("compass", "".join(rng.sample("NESW", 4))),
        ),
    )


def _work_walk(observation: str) -> str:
    found = re.search(r"(\d) at (\d)(\d) go ([NESW]+)", observation)
    side, x, y = (int(part) for part in found.groups()[:3])  # type: ignore[union-attr]  # documented to raise
    said = []
    for move in found.group(4):  # type: ignore[union-attr]  # as above
        x = (x + {"E": 1, "W": -1}.get(move, 0)) % side
        y = (y + {"N": 1, "S": -1}.get(move, 0)) % side
        said.append(f"{move}{x}{y}")
    return "".join(said)


def _draw_flip(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $s = $r.sample(string.ascii_uppercase, self.size + 1)
        $c = $r.choice($s)
        $t = "".join($s)
        self.goal = $t.replace($c, "")[::-1]
        return f"$phrase {$t} without {$c}", {}
""",
        values=(("phrase", rng.choice(("mirror", "reverse", "turn round"))),),
        needs_string=True,
    )


def _work_flip(observation: str) -> str:
    row, dropped = re.search(r"([A-Z]+) without ([A-Z])", observation).groups()  # type: ignore[union-attr]  # documented
    return row.replace(dropped, "")


FAMILIES = (
    Family(
        name="walk",
        skill="Spatial Reasoning",
        sizes=(1, 9),
        easy=(1, 2),
        keywords=FAMILY_WORDS["walk"],
        hints=("write the place after every move", "track both coordinates move by move", "note where you are at each step"),
        draw=_draw_walk,
        work=_work_walk,
        practice=0.8,
    ),
    Family(
        name="flip",
        skill="Spatial Reasoning",
        sizes=(2, 9),
        easy=(2, 3),
        keywords=FAMILY_WORDS["flip"],
        hints=(
            "first write the row without the letter",
            "drop the letter and then turn the row",
            "write what stays before you reverse it",
        ),
        draw=_draw_flip,
        work=_work_flip,
        practice=1.0,
    ),
)
