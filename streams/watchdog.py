"""Ends a stage that stands still: records of its partitions that it does not take, or finished ones that it does not commit.

In: what the stage has taken and finished, and what the broker says of its partitions. Out: a cause, once something has stood
still for the limit. Called by streams/app.py in a task of its own. Faust can stop fetching or committing without an error;
held records are no standing still, they are taken and not finished. While the broker is away nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.kafka import make_admin, make_consumer, unreachable
from schemas.process import BrokerSettings

Part = tuple[str, int]  # topic, partition


@dataclass(frozen=True)
class PartView:
    """One assigned partition: offsets of the next record to take, of the log's end, after the finished prefix, committed."""

    next: int
    end: int
    finished: int | None  # None: nothing was finished since the assignment
    committed: int | None

    @property
    def is_behind(self) -> bool:
        """Whether records wait to be taken."""
        return self.next < self.end

    @property
    def is_uncommitted(self) -> bool:
        """Whether finished records wait to be committed."""
        return self.finished is not None and (self.committed or 0) < self.finished


@dataclass
class _Since:
    position: int
    at: float


class Watchdog:
    """Remembers since when each position stands. Pure: the time comes in as an argument."""

    def __init__(self, stage: str, limit_s: float) -> None:
        self._stage = stage
        self._limit_s = limit_s
        self._taking: dict[Part, _Since] = {}
        self._committing: dict[Part, _Since] = {}
        self._unready: float | None = None

    def forget(self) -> None:
        """Begins anew: the broker was away."""
        self._taking.clear()
        self._committing.clear()
        self._unready = None

    def look_unready(self, now: float) -> str:
        """The cause where the stage has had no assignment that it could work on for the limit; "" otherwise."""
        self._taking.clear()
        self._committing.clear()
        if self._unready is None:
            self._unready = now
        if now - self._unready < self._limit_s:
            return ""
        return f"stream stage {self._stage} has waited {self._limit_s:.0f} s for its partitions and their past"

    def look(self, now: float, parts: Mapping[Part, PartView]) -> str:
        """The cause where a partition stands still for the limit; "" otherwise."""
        self._unready = None
        for part, view in parts.items():
            if _stands(self._taking, part, view.next, now, view.is_behind) >= self._limit_s:
                return (
                    f"stream stage {self._stage} has taken no record of {part[0]}:{part[1]} for {self._limit_s:.0f} s: it stands "
                    f"at offset {view.next} of {view.end}"
                )
            if _stands(self._committing, part, view.committed or 0, now, view.is_uncommitted) >= self._limit_s:
                return (
                    f"stream stage {self._stage} has committed nothing of {part[0]}:{part[1]} for {self._limit_s:.0f} s: "
                    f"it stands at offset {view.committed or 0}, finished is all before {view.finished}"
                )
        for known in (self._taking, self._committing):
            for part in known.keys() - parts.keys():
                del known[part]
        return ""


def _stands(known: dict[Part, _Since], part: Part, position: int, now: float, waits: bool) -> float:
    """For how long the position has stood while something waits."""
    since = known.get(part)
    if since is None or since.position != position or not waits:
        known[part] = _Since(position, now)
        return 0.0
    return now - since.at


def read_group(
    broker: BrokerSettings, group: str, parts: Iterable[Part], taken: Mapping[Part, int], finished: Mapping[Part, int | None]
) -> dict[Part, PartView]:
    """What the broker says of a group's partitions now, over connections of its own. Blocks; raises BrokerError."""
    wanted = [TopicPartition(*part) for part in parts]
    if not wanted:
        return {}
    admin, consumer = make_admin(broker), make_consumer(broker, None, ())
    try:
        starts, ends = consumer.beginning_offsets(wanted), consumer.end_offsets(wanted)
        told = admin.list_group_offsets({group: None})[group]
    except (KafkaError, OSError) as problem:
        raise unreachable(broker, problem) from problem
    finally:
        admin.close()
        consumer.close()
    views = {}
    for where in wanted:
        part = (where.topic, where.partition)
        committed = told[where].offset if where in told and told[where].offset >= 0 else None
        first = max(starts[where], committed or 0)
        views[part] = PartView(max(taken.get(part, first), first), ends[where], finished.get(part), committed)
    return views
