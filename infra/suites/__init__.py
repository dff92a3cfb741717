"""Held-out suites: environments that no training ever sees, one JSON line each, and the seeds on which an evaluation plays them.

Called by the evaluation and the demo's report. Suites are written by the nano build's maker (trainer/nano/suite.py) and by
people.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from infra.corpus.pool import load_pool
from infra.suites.items import SuiteItem
from infra.suites.reasoninggym import NAME as REASONING_GYM
from infra.suites.reasoninggym import load_reasoning_gym
from schemas.design import Document
from schemas.errors import SettingsError

__all__ = ["REASONING_GYM", "SUITES", "SuiteItem", "evaluation_seed", "load_suite", "suite_lines"]

SUITES = Path(__file__).parent
MAX_TURNS = 25  # of a pool's environments


def load_suite(name: str) -> list[SuiteItem]:
    """A shipped suite by name, reasoning-gym where that package is installed, one at a path that ends in .jsonl, or the
    environments of a pool's folder (infra/corpus/pool.py), which are won at a return of 1. Raises SettingsError naming the file
    and the line, CorpusError for a pool."""
    if name == REASONING_GYM:
        return load_reasoning_gym()
    folder = Path(name) if Path(name).is_dir() else SUITES.parent.parent / name
    if "/" in name and folder.is_dir():
        return [_pooled(one) for one in load_pool(folder)]
    path = Path(name) if name.endswith(".jsonl") else SUITES / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in SUITES.glob("*.jsonl")))
        raise SettingsError(f"no suite {name!r} ({path} is missing)", f"Shipped suites: {known}; or give a pool's folder")
    items = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            items.append(msgspec.json.decode(line, type=SuiteItem))
        except msgspec.DecodeError as error:
            raise SettingsError(f"{path} line {number}: {error}", "Each line is one SuiteItem as JSON") from error
    if not items:
        raise SettingsError(f"{path} is empty", "A suite holds one JSON object a line")
    return items


def suite_lines(items: Iterable[SuiteItem]) -> bytes:
    """A suite's file: what `load_suite` reads."""
    return b"".join(msgspec.json.encode(item) + b"\n" for item in items)


def _pooled(one: Document) -> SuiteItem:
    return SuiteItem(
        env_id=one.document_id,
        family=one.title,
        size=0,
        skill=one.skill,
        source=one.text,
        hint=one.hint,
        max_turns=MAX_TURNS,
        win_return=1.0,
    )


def evaluation_seed(env_id: str, index: int, salt: str = "") -> int:
    """The environment seed of an evaluation's instance, drawn by hash in a namespace of its own.

    `salt` names a fresh set of instances of the same environments.
    """
    return int.from_bytes(sha256(f"spade/evaluation/{salt}/{env_id}/{index}".encode()).digest()[:4], "big")
