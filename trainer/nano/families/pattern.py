"""Pattern Recognition: occurrences of a digit, and the next terms of a sequence with alternating steps."""

import re
from random import Random

from infra.dialects.words import FAMILY_WORDS
from trainer.nano.family import Family, Program


def _draw_count(rng: Random, size: int) -> Program:
    digits = "".join(rng.sample("0123456789", rng.choice((3, 3, 4))))
    return Program(
        reset="""        $r = random.Random(seed)
        $s = [$r.choice(self.digits) for _ in range(self.size)]
        $c = $r.choice(self.digits)
        self.goal = str($s.count($c))
        $t = "".join($x + $y for $x, $y in zip(string.ascii_uppercase, $s))
        return f"$phrase {$c} in {$t}", {}
""",
        fields=f'    digits = "{digits}"\n',
        needs_string=True,
        values=(("phrase", rng.choice(("count", "how many", "tally"))),),
    )


def _work_count(observation: str) -> str:
    digit, row = re.search(r"(\d) in ((?:[A-Z]\d)+)", observation).groups()  # type: ignore[union-attr]  # documented to raise
    seen, said = 0, []
    for place, each in zip(row[::2], row[1::2], strict=True):
        seen += each == digit
        said.append(f"{place}{each}{seen}")
    return "".join(said)


def _draw_next(rng: Random, size: int) -> Program:
    alternating = rng.random() < 0.5
    return Program(
        reset="""        $r = random.Random(seed)
        $a, $d, $e = [$r.randrange(1, 10) for _ in range(3)]
        $s = [$a]
        for $i in range(self.size + 5):
            $s.append(($s[-1] + $change) % 10)
        $t = "".join(map(str, $s))
        self.goal = $t[6:]
        return f"$phrase {$t[:6]} by {self.size}", {}
""".replace("$change", "($e if $i % 2 else $d)" if alternating else "$d"),
        values=(("phrase", rng.choice(("continue", "go on from", "extend"))),),
    )


def _work_next(observation: str) -> str:
    row, wanted = re.search(r"(\d{6}) by (\d+)", observation).groups()  # type: ignore[union-attr]  # documented to raise
    terms = [int(digit) for digit in row]
    steps = [(terms[1] - terms[0]) % 10, (terms[2] - terms[1]) % 10]
    value, said = terms[-1], f"+{steps[0]}+{steps[1]} {terms[-1]}"
    for index in range(5, 5 + int(wanted)):
        value = (value + steps[index % 2]) % 10
        said += f"+{steps[index % 2]}={value}"
    return said


FAMILIES = (
    Family(
        name="count",
        skill="Pattern Recognition",
        sizes=(3, 9),
        easy=(3, 4),
        keywords=FAMILY_WORDS["count"],
        hints=(
            "write the count after every place",
            "tick off the places in their order",
            "keep a tally as you go along the row",
        ),
        draw=_draw_count,
        work=_work_count,
        practice=1.3,
    ),
    Family(
        name="next",
        skill="Pattern Recognition",
        sizes=(1, 9),
        easy=(1, 2),
        keywords=FAMILY_WORDS["next"],
        hints=("find both steps first", "write the steps between the terms", "note the change and add it each time"),
        draw=_draw_next,
        work=_work_next,
        practice=1.2,
    ),
)
