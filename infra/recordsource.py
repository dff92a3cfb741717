"""Where a run's records are read from again: the log itself, or an archive of it (infra/archive.py).

In: topics and a run. Out: records with their places, in one order: by topic, partition, offset. Called by `spade replay`,
`spade memory rebuild` and `spade archive`. Blocks while it reads; every wait ends within STALL_LIMIT_S.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from infra.claims import claimed, content_of
from schemas.codec import decode
from schemas.common import Record
from schemas.errors import ClaimError, RecordError, StageTimeoutError
from schemas.process import BrokerSettings
from schemas.topics import BY_WIRE, Topic

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

STALL_LIMIT_S = 60.0


@dataclass(frozen=True)
class LogRecord:
    """One record as the log holds it: its place, its bytes (its own, where the log holds a claim), and what they say."""

    topic: Topic
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    data: bytes
    record: Record

    @property
    def is_bare(self) -> bool:
        """Whether only a claim was found and not its content: then `record` is a Record with run and event, `data` the claim."""
        return type(self.record) is Record


class RecordSource(Protocol):
    """A log or a copy of one. `name` tells people which."""

    name: str
    unreadable: Counter[tuple[str, int]]  # topic, partition -> what the scans so far left out

    def scan(self, topics: Sequence[Topic], run_id: str = "") -> Iterator[LogRecord]:
        """Every record of the topics that stands there now, of one run or ("") of all; topics as given, then by partition and
        offset. Bytes that are no record are left out: they belong to no run, and their dead letters tell of them. A claim whose
        content can't be had is an error in a scan of its own run, and a bare record in a scan of all.

        Blocks while it reads; raises BrokerError, StageTimeoutError, ArchiveError, ClaimError.
        """
        ...


class BrokerSource:
    """A broker's log, read without a group, from its beginning to the ends that it has when the scan begins."""

    def __init__(self, settings: BrokerSettings, stall_limit_s: float = STALL_LIMIT_S) -> None:
        self.name = f"the log at {settings.address}"
        self.unreadable: Counter[tuple[str, int]] = Counter()
        self._settings = settings
        self._stall_limit_s = stall_limit_s

    def scan(self, topics: Sequence[Topic], run_id: str = "") -> Iterator[LogRecord]:
        """See RecordSource.scan."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError

        from infra.kafka import make_consumer, unreachable

        consumer = make_consumer(self._settings, None, (), offset_reset="none")
        try:
            parts = [TopicPartition(topic.wire, n) for topic in topics for n in self._partitions(consumer, topic, run_id)]
            first, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
            for part in parts:
                if first[part] < ends[part]:
                    yield from self._read(consumer, part, first[part], ends[part], run_id)
        except (KafkaError, OSError) as problem:
            raise unreachable(self._settings, problem) from problem
        finally:
            consumer.close()

    def _partitions(self, consumer: KafkaConsumer, topic: Topic, run_id: str) -> Sequence[int]:
        from infra.kafka import count_partitions, partition_of

        count = count_partitions(consumer, topic.wire, self._settings)
        return [partition_of(run_id.encode(), count)] if run_id and topic.is_run_topic else range(count)

    def _read(self, consumer: KafkaConsumer, part: TopicPartition, first: int, end: int, run_id: str) -> Iterator[LogRecord]:
        topic = BY_WIRE[part.topic]
        consumer.assign([part])
        consumer.seek(part, first)
        limit = time.monotonic() + self._stall_limit_s
        while consumer.position(part) < end:
            messages = consumer.poll(timeout_ms=500).get(part, ())
            for message in messages:
                found = self._decode(topic, message, run_id) if message.offset < end else None
                if found is not None and run_id in ("", found.record.run_id):
                    yield found
            if messages:
                limit = time.monotonic() + self._stall_limit_s
            elif time.monotonic() >= limit:
                raise StageTimeoutError(
                    f"{part.topic}:{part.partition} was not read beyond offset {consumer.position(part)} of {end} within "
                    f"{self._stall_limit_s:.0f} s",
                    f"Check broker {self._settings.address}",
                )

    def _decode(self, topic: Topic, message: Any, run_id: str) -> LogRecord | None:
        """The record, with its own bytes also where the log holds a claim of it."""
        held = bytes(message.value or b"")
        try:
            try:
                data = content_of(topic, held, self._settings, run_id)
            except ClaimError:
                if run_id:
                    raise
                data, record = held, claimed(held)  # who asks for all runs' records has not every run's place
            else:
                if data is None:
                    return None
                record = decode(topic, data)
        except RecordError:
            self.unreadable[topic.wire, message.partition] += 1
            return None
        key = None if message.key is None else bytes(message.key)
        return LogRecord(topic, int(message.partition), int(message.offset), int(message.timestamp), key, data, record)
