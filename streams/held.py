"""The inputs that a stage holds unacknowledged: one ledger a partition, and the commit positions that follow from them.

In: events as Faust hands them over, positions that a join finished. Out: acknowledgements in log order. Called by
streams/shell.py. Pure but for `event.ack()`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from infra.ledger import Entry, Ledger
from streams.stage import Position


class HeldInputs:
    """Ledgers of all assigned partitions."""

    def __init__(self) -> None:
        self._ledgers: dict[tuple[str, int], Ledger[Any]] = defaultdict(Ledger)
        self._entries: dict[Position, Entry[Any]] = {}
        self._positions: dict[tuple[str, int], int] = {}

    def hold(self, topic: str, partition: int, offset: int, event: Any) -> None:
        """Notes an input, in log order within its partition."""
        self._entries[topic, partition, offset] = self._ledgers[topic, partition].open(offset, event)

    def finish(self, positions: list[Position]) -> None:
        """Marks inputs as finished and acknowledges the finished prefix of their partitions; unknown ones are left alone."""
        touched = set()
        for position in positions:
            entry = self._entries.pop(position, None)
            if entry is not None:
                self._ledgers[position[:2]].finish(entry)
                touched.add(position[:2])
        for part in touched:
            for entry in self._ledgers[part].finished_prefix():
                self._positions[part] = entry.offset + 1
                entry.event.ack()

    def commit_position(self, topic: str, partition: int) -> int | None:
        """The offset after the finished prefix; None where nothing was finished since the assignment."""
        return self._positions.get((topic, partition))

    def clear(self) -> None:
        """Forgets everything: the partitions were revoked."""
        for ledger in self._ledgers.values():
            ledger.clear()
        self._ledgers.clear()
        self._entries.clear()
        self._positions.clear()

    @property
    def count(self) -> int:
        """Inputs that are not acknowledged."""
        return sum(ledger.held_count for ledger in self._ledgers.values())
