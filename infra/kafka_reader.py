"""Reads the log without a group: one run's control records from the start, and single records by reference.

In: BrokerSettings, a run or references. Out: decoded records. Called through infra.kafka by trainer, workers and commands.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.claims import from_bytes
from infra.kafka_clients import count_partitions, make_consumer, partition_of, unreachable
from schemas.common import Record, Reference
from schemas.errors import RecordError, ReferenceGoneError, StageTimeoutError
from schemas.process import BrokerSettings
from schemas.topics import Topic

SKIP_BY_READING = 200  # records that are cheaper to read over than to seek past

LogEntry = tuple[Topic, int, int, Record]  # topic, partition, offset, record


class ControlReader:
    """One run's records on run topics, from the start of the log, without a group.

    Records of other runs in the same partition are left out, and so are bytes that are no record (`bad` counts them; the memory
    sink writes their dead letters).
    """

    def __init__(self, settings: BrokerSettings, topics: Sequence[Topic], run_id: str) -> None:
        for topic in topics:
            if not topic.is_run_topic:
                raise ValueError(f"{topic.wire} is not keyed by run")
        self.settings = settings
        self.run_id = run_id
        self.bad = 0
        self._consumer = make_consumer(settings, None, ())
        self._topics = {topic.wire: topic for topic in topics}
        self._parts = [TopicPartition(wire, self._partition(wire)) for wire in self._topics]
        self._consumer.assign(self._parts)
        self._consumer.seek_to_beginning(*self._parts)

    def poll(self, timeout_s: float = 0.2) -> list[LogEntry]:
        """The next records, waiting up to `timeout_s` for the first; in log order within a topic."""
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as problem:
            raise unreachable(self.settings, problem) from problem
        return [entry for part in self._parts for entry in self._decode(batches.get(part, ()))]

    def catch_up(self, deadline_s: float = 60.0) -> list[LogEntry]:
        """Every record from the present position to the ends that the topics have now; StageTimeoutError after `deadline_s`."""
        end_time = time.monotonic() + deadline_s
        try:
            ends = self._consumer.end_offsets(self._parts)
            entries: list[LogEntry] = []
            while any(self._consumer.position(part) < ends[part] for part in self._parts):
                if time.monotonic() >= end_time:
                    raise StageTimeoutError(
                        f"the run topics of {self.run_id} were not read to their ends within {deadline_s:.0f} s",
                        f"Check broker {self.settings.address}",
                    )
                entries.extend(self.poll(0.1))
        except KafkaError as problem:
            raise unreachable(self.settings, problem) from problem
        return entries

    def close(self) -> None:
        """Closes the connection."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _partition(self, wire: str) -> int:
        return partition_of(self.run_id.encode(), count_partitions(self._consumer, wire, self.settings))

    def _decode(self, messages: Sequence[Any]) -> Iterable[LogEntry]:
        for message in messages:
            topic = self._topics[message.topic]
            try:
                record = from_bytes(topic, message.value or b"", self.settings, self.run_id)
            except RecordError:
                self.bad += 1
                continue
            if record.run_id == self.run_id:
                yield topic, message.partition, message.offset, record


def read_log(settings: BrokerSettings, topics: Sequence[Topic], run_id: str) -> ControlReader:
    """A reader at the start of the run's topics."""
    return ControlReader(settings, topics, run_id)


@dataclass
class RecordFetcher:
    """Reads single records by reference; keeps its connection between calls."""

    settings: BrokerSettings
    deadline_s: float = 120.0
    _consumer: KafkaConsumer | None = field(default=None, repr=False)

    def fetch(self, references: Sequence[Reference]) -> dict[str, Record]:
        """Id -> record for every reference, each partition read forward once.

        Raises ReferenceGoneError (retention removed one, or another record stands there) and StageTimeoutError.
        """
        if self._consumer is None:
            self._consumer = make_consumer(self.settings, None, (), offset_reset="none")
        wanted: dict[TopicPartition, dict[int, Reference]] = defaultdict(dict)
        for reference in references:
            wanted[TopicPartition(reference.topic, reference.partition)][reference.offset] = reference
        if not wanted:
            return {}
        try:
            return self._read(self._consumer, wanted)
        except KafkaError as problem:
            raise unreachable(self.settings, problem) from problem

    def close(self) -> None:
        """Closes the connection; the next fetch opens a new one."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self, consumer: KafkaConsumer, wanted: Mapping[TopicPartition, dict[int, Reference]]) -> dict[str, Record]:
        consumer.assign(list(wanted))
        consumer.resume(*wanted)  # an earlier fetch paused what it had read
        first, ends = consumer.beginning_offsets(list(wanted)), consumer.end_offsets(list(wanted))
        for part, offsets in wanted.items():
            for offset, reference in offsets.items():
                if not first[part] <= offset < ends[part]:
                    raise _gone(reference, f"the log holds offsets {first[part]} to {ends[part] - 1}")
            consumer.seek(part, min(offsets))
        found: dict[str, Record] = {}
        left = {part: sorted(offsets, reverse=True) for part, offsets in wanted.items()}
        end_time = time.monotonic() + self.deadline_s
        while left:
            if time.monotonic() >= end_time:
                raise StageTimeoutError(
                    f"{sum(map(len, left.values()))} of {sum(map(len, wanted.values()))} referenced records were not read within "
                    f"{self.deadline_s:.0f} s",
                    f"Check broker {self.settings.address}",
                )
            for part, messages in consumer.poll(timeout_ms=200).items():
                if part in left:
                    self._take(messages, left[part], wanted[part], found)
                    self._advance(consumer, part, left)
        return found

    def _take(self, messages: Sequence[Any], left: list[int], wanted: Mapping[int, Reference], found: dict[str, Record]) -> None:
        for message in messages:
            if left and message.offset > left[-1]:
                raise _gone(wanted[left[-1]], "the log has a gap there")
            if left and message.offset == left[-1]:
                reference = wanted[left.pop()]
                record = from_bytes(reference.topic, message.value or b"", self.settings)
                if record.event_id != reference.id:
                    raise _gone(reference, f"{record.event_id} stands there")
                found[reference.id] = record

    @staticmethod
    def _advance(consumer: KafkaConsumer, part: TopicPartition, left: dict[TopicPartition, list[int]]) -> None:
        if not left[part]:
            del left[part]
            consumer.pause(part)
        elif left[part][-1] > consumer.position(part) + SKIP_BY_READING:
            consumer.seek(part, left[part][-1])


def fetch(settings: BrokerSettings, references: Sequence[Reference]) -> dict[str, Record]:
    """One fetch over a connection of its own; see RecordFetcher.fetch."""
    fetcher = RecordFetcher(settings)
    try:
        return fetcher.fetch(references)
    finally:
        fetcher.close()


def _gone(reference: Reference, why: str) -> ReferenceGoneError:
    return ReferenceGoneError(
        f"{reference.topic}:{reference.partition}:{reference.offset} no longer holds {reference.id}: {why}",
        "The topic's retention is too short for this run, or the log was replaced; start a new run",
    )
