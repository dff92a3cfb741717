"""Acknowledgement in order: which records of one partition are finished, up to the first that is still open.

In: records as they arrive, by offset, and word that one is finished, in any order. Out: the finished prefix, once. Called by
the Faust shell of the stream stages and by the workers' consumer, one ledger a partition; both commit only what it hands out,
because a commit position past an open record loses that record at a restart. Pure: no clock, no client, nothing blocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

E = TypeVar("E")


@dataclass(eq=False)
class Entry(Generic[E]):
    """One record in a ledger: its offset, what the caller needs to acknowledge it, and whether it is finished."""

    offset: int
    event: E
    done: bool = field(default=False)


class Ledger(Generic[E]):
    """The unacknowledged records of one partition, in log order."""

    def __init__(self) -> None:
        self._entries: deque[Entry[E]] = deque()
        self._open = 0

    def open(self, offset: int, event: E) -> Entry[E]:
        """Notes a record that was read. Raises ValueError when its offset is not above those noted before."""
        if self._entries and offset <= self._entries[-1].offset:
            raise ValueError(f"offset {offset} after {self._entries[-1].offset}: a ledger takes records in log order")
        entry = Entry(offset, event)
        self._entries.append(entry)
        self._open += 1
        return entry

    def finish(self, entry: Entry[E]) -> None:
        """Marks a record as finished; a second time, or after `clear`, changes nothing that is handed out."""
        if not entry.done:
            entry.done = True
            self._open = max(0, self._open - 1)

    def finished_prefix(self) -> list[Entry[E]]:
        """Removes and returns the finished records that no open one precedes, in log order."""
        finished: list[Entry[E]] = []
        while self._entries and self._entries[0].done:
            finished.append(self._entries.popleft())
        return finished

    def clear(self) -> None:
        """Forgets everything: the partition was revoked, and its records come again."""
        for entry in self._entries:
            entry.done = True
        self._entries.clear()
        self._open = 0

    @property
    def open_count(self) -> int:
        """Records that are noted and not finished."""
        return self._open

    @property
    def held_count(self) -> int:
        """Records that are noted and not handed out, finished or not."""
        return len(self._entries)
