"""Sends records to the log and never loses one in silence.

In: records. Out: the references of where they stand. Called through infra.kafka by workers, trainer and commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from infra.claims import to_bytes
from infra.kafka_clients import REQUEST_BYTES, client_options, unreachable
from schemas.common import Record, Reference
from schemas.errors import BrokerError, RecordError
from schemas.process import BrokerSettings
from schemas.topics import MAX_MESSAGE_BYTES, Topic, key_of

DELIVERY_LIMIT_MS = 120_000  # outlasts a restart of the broker
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


@dataclass
class Sent:
    """A record on its way. `result` must be looked at: an error lives only here."""

    topic: Topic
    record: Record
    future: Any
    address: str

    def result(self, timeout_s: float = DELIVERY_LIMIT_MS / 1000 + 10) -> Reference:
        """Waits for the acknowledgement; returns where the record stands. Raises RecordError (too large) or BrokerError."""
        try:
            meta = self.future.get(timeout=timeout_s)
        except TOO_LARGE as problem:
            raise _too_large(self.topic, self.record) from problem
        except KafkaError as problem:
            raise BrokerError(
                f"broker {self.address} did not take {type(self.record).__name__} for {self.topic.wire} "
                f"({type(problem).__name__}: {problem})",
                "Check that it runs, has disk space and that `spade topics` was run",
            ) from problem
        return Reference(topic=self.topic.wire, partition=meta.partition, offset=meta.offset, id=self.record.event_id)


class RecordProducer:
    """Sends records, acknowledged by all replicas, in order per partition, each once. One thread's object."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        try:
            self._producer = KafkaProducer(
                **client_options(settings),
                acks="all",
                enable_idempotence=True,
                compression_type="zstd",
                linger_ms=5,
                batch_size=256 * 1024,
                max_request_size=REQUEST_BYTES,
                delivery_timeout_ms=DELIVERY_LIMIT_MS,
                max_block_ms=60_000,
                allow_auto_create_topics=False,
            )
        except (KafkaError, OSError) as problem:
            raise unreachable(settings, problem) from problem

    def send(self, topic: Topic, record: Record, key: bytes | None = None, partition: int | None = None) -> Sent:
        """Queues a record (key by the topic table unless given); blocks for metadata, and for the file of one that stands apart.

        Raises RecordError when too large, DiskFullError and ClaimError where its file can't be written.
        """
        data = to_bytes(record, self.settings)
        try:
            future = self._producer.send(topic.wire, value=data, key=key_of(record) if key is None else key, partition=partition)
        except TOO_LARGE as problem:
            raise _too_large(topic, record) from problem
        except (KafkaError, ValueError) as problem:
            raise BrokerError(
                f"broker {self.settings.address} has no topic {topic.wire} ({type(problem).__name__}: {problem})",
                "Run `spade topics` once",
            ) from problem
        return Sent(topic, record, future, self.settings.address)

    def send_all(self, pairs: Iterable[tuple[Topic, Record]]) -> list[Reference]:
        """Sends every (topic, record), waits until all are acknowledged; where they stand, in order. Raises as `Sent.result`."""
        sent = [self.send(topic, record) for topic, record in pairs]
        self.flush()
        return [one.result() for one in sent]

    def flush(self) -> None:
        """Sends what is queued and waits for the acknowledgements; errors stay in the `Sent`."""
        try:
            self._producer.flush(timeout=DELIVERY_LIMIT_MS / 1000 + 10)
        except KafkaError as problem:
            raise unreachable(self.settings, problem) from problem

    def close(self) -> None:
        """Flushes up to 10 s and closes."""
        self._producer.close(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def make_producer(settings: BrokerSettings) -> RecordProducer:
    """A producer of records; raises BrokerError when the broker does not answer."""
    return RecordProducer(settings)


def _too_large(topic: Topic, record: Record) -> RecordError:
    return RecordError(
        f"{type(record).__name__} {record.event_id} is larger than the {MAX_MESSAGE_BYTES} bytes of one {topic.wire} message",
        "Make the recipe's units smaller (design.units, rollout.units)",
    )
