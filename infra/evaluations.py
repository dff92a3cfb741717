"""What a model did on a suite, instance by instance, small enough to keep as a file and to compare later.

In: one byte an instance, in the order that suite, seeds and salt decide. Out: a ModelEvaluation, as JSON. Called by `spade eval
MODEL` and by the ablations. Two evaluations pair where suite, its digest, salt, arm and number of instances are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from infra.durable import write_whole
from infra.report.interval import paired_difference
from infra.suites import SuiteItem
from schemas.errors import SettingsError


class ModelEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one suite; fields only ever get added, with defaults."""

    model: str  # the folder's name
    model_digest: str  # of its policy files
    suite: str
    suite_digest: str  # of the items
    salt: str  # names the set of instances
    arm: str  # plain | hint
    items: int  # environments of the suite
    instances: int
    won: str  # a bit an instance in hexadecimal: all items on their first seed, then on their second, ...
    win_rate: float
    low: float  # of the 95 % interval, clustered by environment
    high: float
    by_family: dict[str, float] = {}
    by_skill: dict[str, float] = {}
    formed: float = 1.0  # share of instances in which every turn kept the form
    tokens: int = 0  # that were sampled

    @property
    def results(self) -> bytes:
        """One byte an instance, 1 where won."""
        return unpack_bits(self.won, self.instances)


def pack_bits(values: Sequence[int]) -> str:
    """Zeros and ones as hexadecimal, the first in the highest bit; the last byte is filled up with zeros."""
    bits = "".join("1" if value else "0" for value in values)
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)).hex()


def unpack_bits(text: str, count: int) -> bytes:
    """Inverse of `pack_bits`. Raises ValueError where the text holds fewer than `count` bits."""
    bits = "".join(f"{byte:08b}" for byte in bytes.fromhex(text))
    if len(bits) < count:
        raise ValueError(f"{len(bits)} bits where {count} are due")
    return bytes(bit == "1" for bit in bits[:count])


def suite_digest(items: Sequence[SuiteItem]) -> str:
    """SHA-256 over the items, in hexadecimal."""
    return sha256(b"\n".join(msgspec.json.encode(item) for item in items)).hexdigest()


def make_evaluation(
    items: Sequence[SuiteItem],
    won: bytes,
    *,
    model: str,
    model_digest: str,
    suite: str,
    salt: str = "",
    arm: str = "plain",
    formed: float = 1.0,
    tokens: int = 0,
) -> ModelEvaluation:
    """The evaluation of these results, instance n being item n modulo their number."""
    own = [items[number % len(items)] for number in range(len(won))]
    found = paired_difference(bytes(len(won)), won, [item.env_id for item in own])
    return ModelEvaluation(
        model=model,
        model_digest=model_digest,
        suite=suite,
        suite_digest=suite_digest(items),
        salt=salt,
        arm=arm,
        items=len(items),
        instances=len(won),
        won=pack_bits(won),
        win_rate=found.mean,
        low=max(0.0, found.low),
        high=min(1.0, found.high),
        by_family=_shares([item.family for item in own], won),
        by_skill=_shares([item.skill for item in own], won),
        formed=formed,
        tokens=tokens,
    )


def _shares(names: Sequence[str], won: bytes) -> dict[str, float]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for name, one in zip(names, won, strict=True):
        grouped[name].append(one)
    return {name: sum(ones) / len(ones) for name, ones in sorted(grouped.items())}


def write_evaluations(path: Path, found: Sequence[ModelEvaluation]) -> None:
    """Writes them as JSON, whole or not at all. Raises OSError."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(list(found)), indent=1) + b"\n")


def read_evaluations(path: Path) -> list[ModelEvaluation]:
    """Inverse of `write_evaluations`. Raises SettingsError naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[ModelEvaluation])
    except (OSError, msgspec.MsgspecError) as problem:
        raise SettingsError(
            f"{path} holds no evaluations ({problem})", "Make it again with `spade eval MODEL --out`"
        ) from problem
