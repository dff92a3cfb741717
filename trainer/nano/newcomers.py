"""Six families that no warm start writes or plays and no corpus names, one a skill: what an agent makes of new kinds of task.

In: a seeded generator and a size, as of every family. Out: programs of the contract. Called by the suites' maker alone: a family
that stood in FAMILIES would be trained on.
"""

from random import Random

from trainer.nano.family import Family, Program

_HINT = "look at each part in its turn"


def _draw_digits(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $s = [$r.randrange(10) for _ in range(self.size)]
        self.goal = str(sum($s))
        return "$phrase " + "".join(map(str, $s)), {}
""",
        values=(("phrase", rng.choice(("digits of", "cross sum", "all digits"))),),
    )


def _draw_common(rng: Random, size: int) -> Program:
    groups = rng.choice((2, 3))
    return Program(
        reset="""        $r = random.Random(seed)
        $p = $r.sample(string.ascii_uppercase, 1 + self.size * self.groups)
        $t = []
        for $i in range(self.groups):
            $k = [$p[0]] + $p[1 + $i * self.size:1 + ($i + 1) * self.size]
            $r.shuffle($k)
            $t.append("".join($k))
        self.goal = $p[0]
        return "$phrase " + " ".join($t), {}
""",
        fields=f"    groups = {groups}\n",
        values=(("phrase", rng.choice(("in all of", "shared by", "common to"))),),
        needs_string=True,
    )


def _draw_facing(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $c = "NESW"
        $x = $r.randrange(4)
        $t = f"$phrase {$c[$x]} turn "
        for _ in range(self.size):
            $d = $r.choice("LRB")
            $x = ($x + {"L": 3, "R": 1, "B": 2}[$d]) % 4
            $t += $d
        self.goal = $c[$x]
        return $t, {}
""",
        values=(("phrase", rng.choice(("facing", "looking", "headed"))),),
    )


def _draw_single(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $p = $r.sample(string.ascii_uppercase, self.size)
        $s = $p[1:] * 2 + $p[:1]
        $r.shuffle($s)
        self.goal = $p[0]
        return "$phrase " + "".join($s), {}
""",
        values=(("phrase", rng.choice(("alone in", "without a twin", "single of"))),),
        needs_string=True,
    )


def _draw_nearest(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $g = $r.randrange(20, 80)
        $a = $r.sample(range(1, 10), self.size)
        $s = [$g + $k * $r.choice((-1, 1)) for $k in $a]
        self.goal = str($s[$a.index(min($a))])
        return f"$phrase {$g} of " + " ".join(map(str, $s)), {}
""",
        values=(("phrase", rng.choice(("nearest to", "closest to", "least off"))),),
    )


def _draw_before(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $p = $r.sample(string.ascii_uppercase, self.size + 2)
        $k = $r.randrange(1, len($p))
        self.goal = $p[$k - 1]
        return f"$phrase {$p[$k]} in " + "".join($p), {}
""",
        values=(("phrase", rng.choice(("just before", "what set off", "led to"))),),
        needs_string=True,
    )


def _no_working(_observation: str) -> str:
    return ""


NEWCOMERS: tuple[Family, ...] = tuple(
    Family(name, skill, sizes, sizes, (), (_HINT,), draw, _no_working)
    for name, skill, sizes, draw in (
        ("digits", "Mathematical Reasoning", (2, 9), _draw_digits),
        ("common", "Logical Deduction", (2, 8), _draw_common),
        ("facing", "Spatial Reasoning", (2, 12), _draw_facing),
        ("single", "Pattern Recognition", (3, 10), _draw_single),
        ("nearest", "Optimization", (2, 8), _draw_nearest),
        ("before", "Causal Inference", (2, 14), _draw_before),
    )
)
"""In the order of the skills."""
