"""Held-out suites: environments that no training ever sees, one JSON line each, and the seeds on which an evaluation plays them.

Called by the evaluation and the demo's report. Suites are written by the nano build's maker (trainer/nano/suite.py) and by
people.
"""

from hashlib import sha256
from pathlib import Path

import msgspec

from schemas.errors import SettingsError

SUITES = Path(__file__).parent


class SuiteItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One held-out environment."""

    env_id: str
    family: str
    size: int
    skill: str
    source: str  # play text: `solution` cut out
    hint: str
    max_turns: int
    win_return: float  # an episode wins whose return is at least this


def load_suite(name: str) -> list[SuiteItem]:
    """A shipped suite by name, or one at a path that ends in .jsonl. Raises SettingsError naming the file and the line."""
    path = Path(name) if name.endswith(".jsonl") else SUITES / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in SUITES.glob("*.jsonl")))
        raise SettingsError(f"no suite {name!r} ({path} is missing)", f"Shipped suites: {known}")
    items = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            items.append(msgspec.json.decode(line, type=SuiteItem))
        except msgspec.DecodeError as error:
            raise SettingsError(f"{path} line {number}: {error}", "Each line is one SuiteItem as JSON") from error
    if not items:
        raise SettingsError(f"{path} is empty", "A suite holds one JSON object a line")
    return items


def evaluation_seed(env_id: str, index: int, salt: str = "") -> int:
    """The environment seed of an evaluation's instance, drawn by hash in a namespace of its own.

    `salt` names a fresh set of instances of the same environments.
    """
    return int.from_bytes(sha256(f"spade/evaluation/{salt}/{env_id}/{index}".encode()).digest()[:4], "big")
