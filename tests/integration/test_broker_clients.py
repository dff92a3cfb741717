"""Readers and producers over the real broker: by run, by reference, too large, without a topic."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from infra.kafka import ControlReader, RecordFetcher, fetch, make_consumer, make_producer, partition_of, unit_partition
from infra.topics import create_topics
from schemas.common import Reference
from schemas.errors import BrokerError, RecordError, ReferenceGoneError, SettingsError
from schemas.process import BrokerSettings
from schemas.run import DeadLetter, RunEnding
from schemas.topics import MAX_MESSAGE_BYTES, PARTITIONS, Topic

pytestmark = pytest.mark.integration


def ending(run: str, number: int) -> RunEnding:
    return RunEnding(run_id=run, event_id=f"{run}-{number}", last_generation=number, cause="")


def letter(run: str, size: int) -> DeadLetter:
    return DeadLetter(run_id=run, event_id=f"{run}-letter", origin_topic="t", partition=0, offset=0, reason="", data=bytes(size))


def test_topics_are_made_once_and_another_partition_count_is_refused(broker_settings: BrokerSettings) -> None:
    assert create_topics(broker_settings) == []
    with pytest.raises(BrokerError, match=r"has 12 partitions, the run wants 5.*partitions = 12"):
        create_topics(broker_settings, partitions=5)


def test_a_run_reads_its_own_records_in_order_from_the_start(broker_settings: BrokerSettings, run_id: str) -> None:
    other = next(
        name
        for name in (uuid.uuid4().hex for _ in range(1000))
        if partition_of(name.encode(), PARTITIONS) == partition_of(run_id.encode(), PARTITIONS)
    )
    with make_producer(broker_settings) as producer:
        for number in range(5):
            producer.send_all([(Topic.RUN_ENDING, ending(run_id, number)), (Topic.RUN_ENDING, ending(other, number))])
        with ControlReader(broker_settings, [Topic.RUN_ENDING, Topic.RUN_STARTED], run_id) as reader:
            first = reader.catch_up()
            assert [record.event_id for _, _, _, record in first] == [f"{run_id}-{number}" for number in range(5)]
            assert {partition for _, partition, _, _ in first} == {partition_of(run_id.encode(), PARTITIONS)}
            producer.send_all([(Topic.RUN_ENDING, ending(run_id, 5))])
            assert [record.event_id for _, _, _, record in reader.catch_up()] == [f"{run_id}-5"]


def test_bytes_that_are_no_record_are_counted_and_passed_by(broker_settings: BrokerSettings, run_id: str) -> None:
    raw = KafkaProducer(bootstrap_servers=broker_settings.address)
    raw.send(Topic.RUN_ENDING.wire, value=b"no record", key=run_id.encode()).get(timeout=30)
    raw.close()
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.RUN_ENDING, ending(run_id, 1))])
    with ControlReader(broker_settings, [Topic.RUN_ENDING], run_id) as reader:
        assert [record.event_id for _, _, _, record in reader.catch_up()] == [f"{run_id}-1"]
        assert reader.bad >= 1


def test_records_are_fetched_by_reference_whatever_lies_between(broker_settings: BrokerSettings, run_id: str) -> None:
    with make_producer(broker_settings) as producer:
        pairs = [(Topic.RUN_ENDING, ending(f"{run_id}-{number % 7}", number)) for number in range(2000)]
        references = producer.send_all(pairs)
    wanted = [references[number] for number in (1999, 3, 1000, 1001, 4)]
    fetcher = RecordFetcher(broker_settings)
    for _ in range(2):
        found = fetcher.fetch(wanted)
        assert sorted(found) == sorted(reference.id for reference in wanted)
        assert all(found[reference.id].event_id == reference.id for reference in wanted)
    fetcher.close()


def test_a_reference_beyond_the_log_or_to_another_record_is_gone(broker_settings: BrokerSettings, run_id: str) -> None:
    with make_producer(broker_settings) as producer:
        (reference,) = producer.send_all([(Topic.RUN_ENDING, ending(run_id, 0))])
    beyond = Reference(topic=reference.topic, partition=reference.partition, offset=10**9, id="x")
    with pytest.raises(ReferenceGoneError, match="no longer holds x: the log holds offsets"):
        fetch(broker_settings, [beyond])
    other = Reference(topic=reference.topic, partition=reference.partition, offset=reference.offset, id="y")
    with pytest.raises(ReferenceGoneError, match=f"no longer holds y: {run_id}-0 stands there"):
        fetch(broker_settings, [other])


def test_the_largest_record_passes_and_a_larger_one_is_refused(broker_settings: BrokerSettings, run_id: str) -> None:
    with make_producer(broker_settings) as producer:
        largest = letter(run_id, MAX_MESSAGE_BYTES - 1024)
        (reference,) = producer.send_all([(Topic.DEAD_LETTER, largest)])
        assert fetch(broker_settings, [reference]) == {largest.event_id: largest}
        with pytest.raises(RecordError, match="at most 8388608"):
            producer.send(Topic.DEAD_LETTER, letter(run_id, MAX_MESSAGE_BYTES))


def test_units_go_to_partitions_in_order_and_spread() -> None:
    assert [unit_partition(unit, 4, 12) for unit in range(4)] == [0, 3, 6, 9]
    assert [unit_partition(unit, 24, 12) for unit in range(24)] == [unit // 2 for unit in range(24)]


def test_a_unit_stands_in_the_partition_that_was_named(broker_settings: BrokerSettings, run_id: str) -> None:
    with make_producer(broker_settings) as producer:
        sent = producer.send(Topic.RUN_ENDING, ending(run_id, 0), partition=7)
        producer.flush()
        assert sent.result().partition == 7


def test_a_group_starts_at_the_beginning_and_goes_on_behind_its_commit(broker_settings: BrokerSettings, run_id: str) -> None:
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.RUN_ENDING, ending(run_id, 0))])
        seen: list[set[str]] = []
        for number in range(2):
            consumer = make_consumer(broker_settings, f"group-{run_id}", [Topic.RUN_ENDING], session_timeout_s=6)
            values: set[bytes] = set()
            for _ in range(40):
                values |= {message.value for batch in consumer.poll(timeout_ms=250).values() for message in batch}
                if any(f"{run_id}-{number}".encode() in value for value in values):
                    break
            consumer.commit()
            consumer.close()
            seen.append({name for name in (f"{run_id}-0", f"{run_id}-1") if any(name.encode() in value for value in values)})
            producer.send_all([(Topic.RUN_ENDING, ending(run_id, 1))])
    assert seen == [{f"{run_id}-0"}, {f"{run_id}-1"}]


def test_a_partition_that_was_paused_within_a_batch_is_read_to_its_end_after_others_were(
    broker_settings: BrokerSettings, run_id: str
) -> None:
    slow, other = (TopicPartition(Topic.RUN_ENDING.wire, number) for number in range(2))
    consumer = make_consumer(broker_settings, None, (), max_poll_records=1)
    consumer.assign([slow, other])
    consumer.seek_to_end(slow, other)
    consumer.position(slow), consumer.position(other)
    with make_producer(broker_settings) as producer:
        records = [RunEnding(run_id=run_id, event_id=f"e{number}", last_generation=number, cause="") for number in range(5)]
        for record in records:
            producer.send(Topic.RUN_ENDING, record, partition=0)
        producer.flush()
        assert read(consumer, slow, 1) == 1
        consumer.pause(slow)
        assert not consumer.poll(timeout_ms=500), "the rest of the batch waits"
        for record in records[:2]:
            producer.send(Topic.RUN_ENDING, record, partition=1)
        producer.flush()
    assert read(consumer, other, 2) == 2
    consumer.resume(slow)
    assert read(consumer, slow, 4) == 4
    consumer.close()


def read(consumer: KafkaConsumer, place: TopicPartition, wanted: int, limit_s: float = 20.0) -> int:
    """How many of the wanted records of a partition came within the limit."""
    found, end = 0, time.monotonic() + limit_s
    while found < wanted and time.monotonic() < end:
        found += len(consumer.poll(timeout_ms=200).get(place, ()))
    return found


def test_a_join_is_finished_also_where_a_poll_ends_between_its_two_answers(broker_settings: BrokerSettings, run_id: str) -> None:
    consumer = make_consumer(broker_settings, f"group-{run_id}", [Topic.RUN_ENDING], session_timeout_s=6)
    coordinator = consumer._coordinator
    joins: list[float] = []
    assign = coordinator._perform_assignment

    def assign_slowly(*args: Any, **kwargs: Any) -> Any:
        found = assign(*args, **kwargs)
        joins.append(time.monotonic())
        time.sleep(0.5)  # several polls end meanwhile
        return found

    def polls_until(reached: Callable[[], bool]) -> bool:
        end = time.monotonic() + 30
        while not reached() and time.monotonic() < end:
            consumer.poll(timeout_ms=20)
        return reached()

    try:
        assert polls_until(lambda: len(consumer.assignment()) == PARTITIONS)
        coordinator._perform_assignment = assign_slowly
        coordinator._assignment_snapshot = {}  # as when the topics' metadata have changed since
        assert polls_until(lambda: bool(joins))
        assert polls_until(lambda: coordinator.stable() and not coordinator.rejoining)
        assert len(consumer.assignment()) == PARTITIONS
    finally:
        consumer.close()


def test_a_group_is_joined_with_the_partitions_that_there_are(broker_settings: BrokerSettings, run_id: str) -> None:
    topics = [Topic.RUN_ENDING, Topic.RUN_STARTED]
    consumer = make_consumer(broker_settings, f"group-{run_id}", topics)
    coordinator = consumer._coordinator
    known: list[int] = []
    assign = coordinator._perform_assignment

    def assign_and_count(*args: Any, **kwargs: Any) -> Any:
        known.append(sum(len(coordinator._cluster.partitions_for_topic(topic.wire) or ()) for topic in topics))
        return assign(*args, **kwargs)

    coordinator._perform_assignment = assign_and_count
    try:
        end = time.monotonic() + 60
        while not consumer.assignment() and time.monotonic() < end:
            consumer.poll(timeout_ms=50)
        assert len(consumer.assignment()) == 2 * PARTITIONS
        assert known[0] == 2 * PARTITIONS  # the first join knows all of them; a slow machine may join more than once
    finally:
        consumer.close()


def test_a_password_file_that_is_missing_is_named(tmp_path: Path) -> None:
    settings = BrokerSettings(address="127.0.0.1:1", security_protocol="SASL_PLAINTEXT", password_file=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match=r"password file .*none.* can't be read"):
        make_producer(settings)
