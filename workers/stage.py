"""What a worker stage is to the consume loop: its topics, the bounds of its work, and what it does with one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.common import Record, Reference
from schemas.topics import Topic

Outputs = Sequence[tuple[Topic, Record]]


class Work(Protocol):
    """What a stage does with one record. `run` is called in a thread of its own, one record at a time."""

    def run(self, record: Record, at: Reference) -> Outputs:
        """The records that follow. May block; a SpadeError or a bug it raises ends the process, and a restart tries again."""
        ...

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        """The records that tell that this one was lost to the infrastructure. Pure."""
        ...


@dataclass(frozen=True)
class Stage:
    """A worker stage: its word, its input topics, and the bounds of its work."""

    name: str
    topics: tuple[Topic, ...]
    deadline_s: float  # of one record's work
    prefetch: int  # records that may wait
    tries: int
