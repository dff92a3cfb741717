"""A stage that stands still: work waits for it and it acknowledges nothing.

In: positions of consumer groups as they are looked at, and when generations closed. Out: one sentence an alarm. A stage holds its
input until a group is whole, so how long is too long depends on the run: three times the longest generation so far, and never
less than STILL_S. Pure but for what it remembers; called by `spade status`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

STILL_S: Final = 120.0
GENERATIONS: Final = 3
"""Longest generations so far that a stage may stand still before it is an alarm."""


def still_limit_s(closings: Sequence[float]) -> float:
    """Seconds without an acknowledgement that are too long, from the times at which generations closed."""
    longest = max((later - earlier for earlier, later in pairwise(sorted(closings))), default=0.0)
    return max(STILL_S, GENERATIONS * longest)


@dataclass
class StandStill:
    """Remembers since when each group's position has not moved."""

    _since: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def note(self, group: str, topic: str, committed: int, now: float) -> float:
        """Seconds for which the position has stood where it is; 0 at the first look and after each move."""
        known = self._since.get((group, topic))
        if known is None or known[0] != committed:
            self._since[group, topic] = (committed, now)
            return 0.0
        return now - known[1]


def stage_alarm(group: str, topic: str, lag: int, still_s: float, limit_s: float) -> str:
    """The alarm of one group, or ""."""
    if lag <= 0 or still_s <= limit_s:
        return ""
    return f"standstill: {group} has acknowledged nothing of {topic} for {still_s:.0f} s while {lag} records wait"


def run_alarm(last_at: float, now: float, limit_s: float) -> str:
    """The alarm of a whole unfinished run, by the time of its last record; ""where it moves. Needs one look only."""
    silent_s = now - last_at
    if not last_at or silent_s <= limit_s:
        return ""
    return f"standstill: no generation, step or policy for {silent_s:.0f} s; look at the processes' logs, or start them again"
