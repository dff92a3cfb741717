"""Mathematical Reasoning: a running value, and the sum of two long numbers."""

import re
from random import Random

from infra.dialects.words import FAMILY_WORDS
from trainer.nano.family import Family, Program

_RULES = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def apply_sign(value: int, sign: str, operand: int) -> int:
    """The last digit of `value sign operand`."""
    return int(_RULES[sign](value, operand)) % 10


def _draw_chain(rng: Random, size: int) -> Program:
    signs = "".join(rng.sample("+-*", rng.choice((2, 3))))
    return Program(
        reset="""        $r = random.Random(seed)
        $v = $r.randrange(10)
        $t = str($v)
        for _ in range(self.size):
            $o, $k = $r.choice("$signs"), $r.randrange(1, 10)
            $v = {"+": $v + $k, "-": $v - $k, "*": $v * $k}[$o] % 10
            $t += $o + str($k)
        self.goal = str($v)
        return "$phrase " + $t, {}
""",
        values=(("signs", signs), ("phrase", rng.choice(("last digit of", "run", "left to right")))),
    )


def _work_chain(observation: str) -> str:
    digits = observation.split()[-1]
    value, said = int(digits[0]), digits[0]
    for sign, operand in re.findall(r"([+*-])(\d)", digits):
        value = apply_sign(value, sign, int(operand))
        said += f"{sign}{operand}={value}"
    return said


def _draw_add(rng: Random, size: int) -> Program:
    return Program(
        reset="""        $r = random.Random(seed)
        $h = 10 ** self.size
        $a = $r.randrange($h // 10, $h)
        $b = $r.randrange($h // 10, $h)
        self.goal = str($a + $b)
        return f"$phrase {$a}+{$b}", {}
""",
        values=(("phrase", rng.choice(("add", "sum", "total of"))),),
    )


def _work_add(observation: str) -> str:
    first, second = observation.split()[-1].split("+")
    carry, columns = 0, []
    for left, right in zip(reversed(first), reversed(second), strict=True):
        total = int(left) + int(right) + carry
        carry = total // 10
        columns.append(f"{left}+{right}={total:02d}")
    return " ".join(columns)


FAMILIES = (
    Family(
        name="chain",
        skill="Mathematical Reasoning",
        sizes=(1, 9),
        easy=(1, 2),
        keywords=FAMILY_WORDS["chain"],
        hints=("keep a running value", "write the value after every sign", "take sign by sign and note each result"),
        draw=_draw_chain,
        work=_work_chain,
        practice=1.0,
    ),
    Family(
        name="add",
        skill="Mathematical Reasoning",
        sizes=(1, 9),
        easy=(1, 2),
        keywords=FAMILY_WORDS["add"],
        hints=("add column by column from the right", "carry from the right to the left", "write each column with its carry"),
        draw=_draw_add,
        work=_work_add,
        practice=1.1,
    ),
)
