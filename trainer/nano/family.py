"""A task family: what the warm start can write, play and explain, with one size that sets the difficulty.

In: a seeded random generator and a size. Out: the text of one environment (the contract of docs/NANO.md) and, for an
observation of it, the working that a careful player shows before the answer. Called by the writer, the suite and the tests.
Nothing here blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from string import Template

NAME_POOLS = ("rgz", "sap", "tkc", "vmq", "dej", "xbn", "yhu")
"""Variable names of written programs: single letters, each one token. The first variable of a program is drawn from the
first pool, the second from the second, and so on. `f` is left out, since it also begins f-strings."""

_HEAD = """{imports}


class {title}Env:
    skill = "{skill}"
    size = {size}
{fields}
    def __init__(self, max_turns=25):
        {init}

    def reset(self, seed=None):
"""

_SINGLE_TURN = """
    def step(self, action):
        won = action == self.goal
        self.goal = None
        return {told}, float(won), True, False, {{}}

    def solution(self):
        return [self.goal]
"""

_TOLD = ('"right" if won else "wrong"', '"yes" if won else "no"', '"solved" if won else "missed"')


@dataclass(frozen=True)
class Program:
    """The drawn parts of one environment before they are joined to a file."""

    reset: str
    """Body of reset as a `string.Template` of lines indented by eight spaces; `$name` stands for a drawn variable."""
    fields: str = ""
    """Class-level constants, indented by four spaces, each line ending in a newline."""
    values: tuple[tuple[str, str], ...] = ()
    """Template values that are no variable names (an operator, an alphabet, a phrase)."""
    needs_string: bool = False
    """Whether the file imports `string`."""
    init: str = "self.goal = None"
    tail: str = ""
    """Template of `step` and `solution`; empty for the single-turn ending that most families share."""


@dataclass(frozen=True)
class Family:
    """One kind of task. `sizes` bounds what may be written, `easy` where an easy start writes; both ends belong to the range."""

    name: str
    skill: str
    sizes: tuple[int, int]
    easy: tuple[int, int]
    keywords: tuple[str, ...]
    """Words of documents that point to this family; no word belongs to two families."""
    hints: tuple[str, ...]
    """Short notes that name the method and hold no answer."""
    draw: Callable[[Random, int], Program]
    """Draws the parts of a program of a size."""
    work: Callable[[str], str]
    """The working for a first observation; raises AttributeError where the observation is not of this family."""
    step: int = 1
    """Smallest change of size that matters."""
    practice: float = 1.0
    """How often it is played in the warm start beside the others: more where the working is slow to learn."""

    def clip(self, size: int) -> int:
        """The size within the bounds of this family."""
        return max(self.sizes[0], min(self.sizes[1], size))


def write_source(family: Family, rng: Random, size: int) -> str:
    """A whole environment file of this family and size; names, alphabets, operations and phrases are drawn from `rng`."""
    program = family.draw(rng, size)
    body = Template(program.reset + (program.tail or _SINGLE_TURN.format(told=rng.choice(_TOLD))))
    fixed = dict(program.values)
    wanted = [name for name in dict.fromkeys(body.get_identifiers()) if name not in fixed]
    text = body.substitute(fixed | {name: rng.choice(pool) for name, pool in zip(wanted, NAME_POOLS, strict=False)})
    head = _HEAD.format(
        imports="import random\nimport string" if program.needs_string else "import random",
        title=family.name.capitalize(),
        skill=family.skill,
        size=size,
        fields=program.fields,
        init=program.init,
    )
    return head + text
