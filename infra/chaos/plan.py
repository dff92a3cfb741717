"""A seeded plan of blows: which kind of process is struck, how, and after which share of the run's records.

In: kinds, a number and a seed. Out: blows in order. Called by the storm. Pure: the same seed gives the same plan; when within a
run a blow falls is told in records of the log and not in seconds, so that it does not depend on the machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KILL, STALL = "kill -9", "stall"
EARLIEST, LATEST = 0.03, 0.8  # of the undisturbed run's records
STALL_SHARE = 0.15
LONGEST_DELAY_S = 0.6


@dataclass(frozen=True)
class Blow:
    """One blow of a storm."""

    share: float  # of the undisturbed run's records, after which it falls
    kind: str
    how: str  # KILL | STALL
    delay_s: float  # from the moment at which the process is seen busy


def make_plan(kinds: Sequence[str], stallable: Sequence[str], blows: int, seed: int) -> list[Blow]:
    """`blows` blows in order of their share; each kind is struck before any is struck for the second time.

    A stall is a SIGSTOP for longer than the process's session lasts; only `stallable` kinds have one.
    """
    draw = random.Random(seed)
    order: list[str] = []
    while len(order) < blows:
        order += draw.sample(list(kinds), len(kinds))
    shares = sorted(draw.uniform(EARLIEST, LATEST) for _ in range(blows))
    made = []
    for share, kind in zip(shares, order[:blows], strict=True):
        stalls = draw.random() < STALL_SHARE and kind in stallable
        made.append(Blow(share, kind, STALL if stalls else KILL, draw.uniform(0.0, LONGEST_DELAY_S)))
    return made


def count_due(waiting: Sequence[Blow], progress: float) -> int:
    """How many of the blows that have not fallen should have, by the share of the undisturbed run's records that there are."""
    return sum(1 for blow in waiting if progress >= blow.share)
