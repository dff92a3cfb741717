"""What a stage reads without a group: control records and its own outputs, from the run's start.

In: broker, run, topics. Out: records with their places. Called by streams/shell.py in threads, one call at a time. Blocks up to
the stated deadlines; raises BrokerError and StageTimeoutError.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.claims import from_bytes
from infra.kafka import ControlReader, count_partitions, make_consumer, unreachable
from schemas.errors import RecordError, StageTimeoutError
from schemas.process import BrokerSettings
from schemas.topics import Topic
from streams.stage import Positioned

CATCH_UP_LIMIT_S = 120.0


class ControlFeed:
    """One assignment's view of the run: all of it up to now, then what follows on the control topics."""

    def __init__(self, broker: BrokerSettings, run_id: str, control: Sequence[Topic], own_work: Sequence[Topic]) -> None:
        self._broker = broker
        self._run_id = run_id
        self._own_work = own_work
        self._reader = ControlReader(broker, list(control), run_id)

    def read_present(self) -> list[Positioned]:
        """Own work records first, then the control records, to the ends that the topics have now."""
        own = read_work(self._broker, self._own_work, self._run_id)
        return own + [Positioned(*entry) for entry in self._reader.catch_up(CATCH_UP_LIMIT_S)]

    def poll(self, timeout_s: float) -> list[Positioned]:
        """The control records that came since, waiting up to `timeout_s` for the first."""
        return [Positioned(*entry) for entry in self._reader.poll(timeout_s)]

    def close(self) -> None:
        """Closes the connection."""
        self._reader.close()


def read_work(
    broker: BrokerSettings, topics: Sequence[Topic], run_id: str, deadline_s: float = CATCH_UP_LIMIT_S
) -> list[Positioned]:
    """The run's records on work topics, all partitions, to the ends that they have now; bytes that are no record are left out."""
    if not topics:
        return []
    consumer = make_consumer(broker, None, ())
    try:
        parts = {
            TopicPartition(topic.wire, partition): topic
            for topic in topics
            for partition in range(count_partitions(consumer, topic.wire, broker))
        }
        consumer.assign(list(parts))
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(list(parts))
        found: list[Positioned] = []
        give_up = time.monotonic() + deadline_s
        while any(consumer.position(part) < ends[part] for part in parts):
            if time.monotonic() >= give_up:
                raise StageTimeoutError(
                    f"own outputs of run {run_id} were not read to their ends within {deadline_s:.0f} s",
                    f"Check broker {broker.address}",
                )
            for part, messages in consumer.poll(timeout_ms=100).items():
                for message in messages:
                    try:
                        record = from_bytes(parts[part], message.value or b"", broker, run_id)
                    except RecordError:
                        continue  # its reader, the worker, writes the dead letter
                    if record.run_id == run_id:
                        found.append(Positioned(parts[part], message.partition, message.offset, record))
        return found
    except KafkaError as problem:
        raise unreachable(broker, problem) from problem
    finally:
        consumer.close()
