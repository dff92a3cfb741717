"""Writes the held-out suite infra/suites/nano.jsonl: every family, at sizes from the easiest to what an agent can grow into.

Called by hand when families change, and by a test that the shipped file is what this code writes.
"""

from pathlib import Path
from random import Random

import msgspec

from infra.suites import SuiteItem
from trainer.nano.families import FAMILIES
from trainer.nano.family import Family, write_source

PROGRAMS = 16
"""Environments of each family."""
REACH = {
    "chain": 8, "add": 6, "follow": 7, "logic": 9, "guess": 30, "walk": 8, "flip": 9,
    "count": 12, "next": 7, "kth": 9, "cheap": 9, "toggle": 5, "cause": 7,
}  # fmt: skip
"""The largest size of each family in the suite."""


def cut_solution(source: str) -> str:
    """The play text of a source of our own writer, whose last method is `solution`."""
    return source[: source.index("\n    def solution")]


def write_items(seed: int = 20_001) -> list[SuiteItem]:
    """The suite's environments; sizes are spread evenly from the smallest to the family's reach."""
    rng = Random(seed)
    return [write_item(rng, family, index) for family in FAMILIES.values() for index in range(PROGRAMS)]


def write_item(rng: Random, family: Family, index: int) -> SuiteItem:
    """One environment: the index decides the size, `rng` the program."""
    low, high = family.sizes[0], REACH[family.name]
    size = low + round(index * (high - low) / (PROGRAMS - 1))
    return SuiteItem(
        env_id=f"nano-{family.name}-{index:02d}",
        family=family.name,
        size=size,
        skill=family.skill,
        source=cut_solution(write_source(family, rng, size)),
        hint=rng.choice(family.hints),
        max_turns=8 if family.name == "guess" else 1,
        win_return=1.0,
    )


def write_suite(path: Path, seed: int = 20_001) -> None:
    """Writes the suite as JSON lines. Raises OSError where the file can't be written."""
    path.write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in write_items(seed)))
