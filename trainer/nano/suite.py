"""Writes the held-out suites of the nano model, below infra/suites: nano (every family, at sizes from the easiest to what an
agent can grow into), nano-sizes (sizes beyond all that the warm start wrote or played) and nano-new (families it never knew).

Called by hand when families change, and by a test that the shipped files are what this code writes.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random

from infra.suites import SuiteItem, suite_lines
from trainer.nano.families import FAMILIES
from trainer.nano.family import Family, write_source
from trainer.nano.newcomers import NEWCOMERS

PROGRAMS = 16
"""Environments of each family."""
REACH = {
    "chain": 9, "add": 7, "follow": 8, "logic": 9, "guess": 7, "walk": 9, "flip": 9,
    "count": 9, "next": 8, "kth": 9, "cheap": 9, "ask": 8, "toggle": 7, "cause": 8,
}  # fmt: skip
"""The largest size of each family in the suite nano."""
TURNS = {"guess": 8, "ask": 16}
"""Turns of the families that take several."""
BEYOND_SIZES, BEYOND_PROGRAMS = 4, 8
"""Sizes past the largest of a family, in its steps, and environments of each family, in nano-sizes."""


def cut_solution(source: str) -> str:
    """The play text of a source of our own writer, whose last method is `solution`."""
    return source[: source.index("\n    def solution")]


def write_items(seed: int = 20_001) -> list[SuiteItem]:
    """The suite nano; sizes are spread evenly from the smallest to the family's reach."""
    rng = Random(seed)
    return [
        write_item(rng, family, index, "nano", (family.sizes[0], REACH[family.name]), PROGRAMS)
        for family in FAMILIES.values()
        for index in range(PROGRAMS)
    ]


def write_sizes(seed: int = 20_002) -> list[SuiteItem]:
    """The suite nano-sizes."""
    rng = Random(seed)
    return [
        write_item(
            rng,
            family,
            index,
            "sizes",
            (family.sizes[1] + family.step, family.sizes[1] + BEYOND_SIZES * family.step),
            BEYOND_PROGRAMS,
        )
        for family in FAMILIES.values()
        for index in range(BEYOND_PROGRAMS)
    ]


def write_newcomers(seed: int = 20_003) -> list[SuiteItem]:
    """The suite nano-new."""
    rng = Random(seed)
    return [write_item(rng, family, index, "new", family.sizes, PROGRAMS) for family in NEWCOMERS for index in range(PROGRAMS)]


def write_item(rng: Random, family: Family, index: int, name: str, sizes: tuple[int, int], count: int) -> SuiteItem:
    """One environment: its place among `count` decides the size, `rng` the program."""
    low, high = sizes
    size = low + round(index * (high - low) / (count - 1))
    return SuiteItem(
        env_id=f"{name}-{family.name}-{index:02d}",
        family=family.name,
        size=size,
        skill=family.skill,
        source=cut_solution(write_source(family, rng, size)),
        hint=rng.choice(family.hints),
        max_turns=TURNS.get(family.name, 1),
        win_return=1.0,
    )


SUITES = {"nano": write_items, "nano-sizes": write_sizes, "nano-new": write_newcomers}
"""The writers by the suites' names."""


def write_suite(path: Path, items: Iterable[SuiteItem] | None = None) -> None:
    """Writes a suite (nano where none is given) as JSON lines. Raises OSError where the file can't be written."""
    path.write_bytes(suite_lines(write_items() if items is None else items))
