"""Poison in every topic, before every consumer that reads it: buried once by each, with reason and place, and all goes on.

On a broker of its own: in the shared one it would flood the tests that come after.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from kafka import KafkaProducer

from infra.clickhouse import ClickHouseStore, connect
from infra.kafka import ControlReader, partition_of
from infra.kafka_groups import POOLS
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.topics import create_topics
from schemas.common import Record, Reference
from schemas.errors import DeadLetterFloodError
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import DeadLetter
from schemas.topics import DEAD_LETTER_BYTES, MAX_MESSAGE_BYTES, PARTITIONS, Topic
from streams.stage import Stage as StreamStage
from tests.conftest import filled
from tests.echoworkers import finish, write_run
from tests.integration.test_streams_loop import SERVE, Log, read_topic
from trainer.logbook import TOPICS
from workers.consumer import UnitConsumer
from workers.memory import MAX_DEAD_LETTERS, MemorySink
from workers.stage import Outputs, Stage

pytestmark = pytest.mark.integration
RUN = "poisoned"
KINDS = ("undecodable", "unknown version", "oversize", "unknown run")
BURIED = {"undecodable": "are no", "unknown version": "schema version 9", "oversize": "are no"}
PARTITION = partition_of(RUN.encode(), PARTITIONS)  # where the run's own control records stand
Place = tuple[str, int, int]


class NoWork:
    """Nothing of this run is ever asked for."""

    def run(self, record: Record, at: Reference) -> Outputs:
        raise AssertionError(f"{at} was worked on")

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        raise AssertionError(f"{at} was given up: {reason}")


@dataclass
class Poisoned:
    """What was written, and what became of it."""

    broker: BrokerSettings
    poison: dict[tuple[Topic, str], Place]
    letters: Counter[Place]  # copies by place
    told: dict[Place, DeadLetter]
    problems: list[BaseException]
    codes: dict[str, int]
    rows: list[dict[str, object]]


def bytes_of(topic: Topic, kind: str) -> bytes:
    match kind:
        case "undecodable":
            return b"\xc1 poison"
        case "unknown version":
            return msgspec.msgpack.encode(filled(topic.record, run_id=RUN, schema_version=9))
        case "oversize":
            return b"\xc1" * (MAX_MESSAGE_BYTES + 100_000)
        case _:
            return msgspec.msgpack.encode(filled(topic.record, run_id="nobody's"))


def write_poison(address: str) -> dict[tuple[Topic, str], Place]:
    raw = KafkaProducer(bootstrap_servers=address, max_request_size=MAX_MESSAGE_BYTES * 2, compression_type="zstd")
    sent = {
        (topic, kind): raw.send(topic.wire, bytes_of(topic, kind), key=RUN.encode(), partition=PARTITION)
        for topic in Topic
        for kind in KINDS
    }
    raw.close()
    metas = {what: future.get(0) for what, future in sent.items()}
    return {what: (meta.topic, meta.partition, meta.offset) for what, meta in metas.items()}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSettings]:
    local = LocalBroker.start(tmp_path_factory.mktemp("poisoned"))
    try:
        settings = BrokerSettings(address=local.address)
        create_topics(settings)
        yield settings
    finally:
        local.stop()


@pytest.fixture(scope="module")
def poisoned(own_broker: BrokerSettings, store: LocalStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poisoned]:
    """Every consumer of the system over a log in which each topic holds each poison, until the run has finished."""
    folder = tmp_path_factory.mktemp("consumers")
    run = write_run(own_broker, RUN)
    poison = write_poison(own_broker.address)
    context = ProcessContext(broker=own_broker, run_id=RUN, store_dsn=store.dsn)
    stages = {}
    for stage in StreamStage:
        with (folder / stage.value).open("wb") as log:
            command = [sys.executable, "-c", SERVE, stage.value, context.model_dump_json()]
            stages[stage.value] = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
    problems: list[BaseException] = []

    def work(pool: str) -> None:
        try:
            stage = Stage(pool, POOLS[f"work-{pool}"], deadline_s=60, prefetch=2, tries=3)
            UnitConsumer(context, run, stage, NoWork(), threading.Event()).run()
        except BaseException as problem:  # noqa: BLE001 - looked at by a test
            problems.append(problem)

    workers = [threading.Thread(target=work, args=(pool,), daemon=True) for pool in ("design", "validate", "rollout")]
    client = connect(store.dsn)
    try:
        for worker in workers:
            worker.start()
        sink = MemorySink(own_broker, client, RUN)
        finish(own_broker, RUN)
        drain(sink, [*stages.values()], workers)
        letters = [record for record in read_topic(own_broker, RUN, Topic.DEAD_LETTER) if isinstance(record, DeadLetter)]
        places = [(one.origin_topic, one.partition, one.offset) for one in letters]
        yield Poisoned(
            own_broker, poison, Counter(places), dict(zip(places, letters, strict=True)), problems,
            {name: process.wait(90) for name, process in stages.items()}, rows_of(client),
        )  # fmt: skip
        sink.close()
    finally:
        client.close()
        for process in stages.values():
            process.kill()
            process.wait(10)


def drain(sink: MemorySink, processes: list[subprocess.Popen[bytes]], threads: list[threading.Thread]) -> None:
    """Steps the memory sink until every other consumer has ended and all is stored, their letters too."""
    end = time.monotonic() + 180
    while (
        any(process.poll() is None for process in processes) or any(thread.is_alive() for thread in threads) or not sink.drain()
    ):
        assert time.monotonic() < end, "the consumers did not end"
        sink.step()


def rows_of(client: ClickHouseStore) -> list[dict[str, object]]:
    return client.query(
        "SELECT origin_topic, origin_partition, origin_offset, reason FROM dead_letters FINAL WHERE run_id = {run:String}",
        {"run": RUN},
    )


def readers_of(topic: Topic) -> int:
    """Groups that read a topic: pools and stages by their table, and the memory sink, which writes no letter about a letter."""
    return sum(topic in topics for topics in POOLS.values()) + (topic is not Topic.DEAD_LETTER)


def test_every_consumer_went_on_to_the_end_of_the_run(poisoned: Poisoned) -> None:
    assert poisoned.problems == []
    assert poisoned.codes == {stage.value: 0 for stage in StreamStage}


@pytest.mark.parametrize("topic", Topic)
@pytest.mark.parametrize("kind", BURIED)
def test_poison_is_buried_by_each_reader_with_reason_place_and_bytes(poisoned: Poisoned, topic: Topic, kind: str) -> None:
    place = poisoned.poison[topic, kind]
    assert poisoned.letters[place] == readers_of(topic)
    if readers_of(topic):
        letter = poisoned.told[place]
        assert BURIED[kind] in letter.reason
        assert topic.wire in letter.reason
        assert letter.data == bytes_of(topic, kind)[:DEAD_LETTER_BYTES]


@pytest.mark.parametrize("topic", Topic)
def test_a_record_of_an_unknown_run_is_passed_over(poisoned: Poisoned, topic: Topic) -> None:
    assert poisoned.letters[poisoned.poison[topic, "unknown run"]] == 0


def test_the_store_holds_each_letter_once(poisoned: Poisoned) -> None:
    stored = [(row["origin_topic"], row["origin_partition"], row["origin_offset"]) for row in poisoned.rows]
    assert sorted(stored) == sorted(poisoned.letters)


def test_the_readers_without_a_group_pass_over_poison_and_count_it(poisoned: Poisoned) -> None:
    with ControlReader(poisoned.broker, TOPICS, RUN) as reader:
        (entry,) = reader.catch_up()
        assert (entry[0], reader.bad) == (Topic.RUN_FINISHED, len(BURIED) * len(TOPICS))


def test_a_flood_stops_the_memory_sink_with_its_cause(own_broker: BrokerSettings, poisoned: Poisoned, store: LocalStore) -> None:
    raw = KafkaProducer(bootstrap_servers=own_broker.address)
    for _ in range(MAX_DEAD_LETTERS + 1):
        raw.send(Topic.STEP_FINISHED.wire, b"\xc1", partition=(PARTITION + 1) % PARTITIONS)
    raw.close()
    client = connect(store.dsn)
    sink = MemorySink(own_broker, client, "flooded")
    try:
        with pytest.raises(DeadLetterFloodError, match=rf"more than {MAX_DEAD_LETTERS} records of .* can't be read; the last"):
            flood(sink)
    finally:
        sink.close()
        client.close()
    log = Log(own_broker, "flooded", (Topic.DEAD_LETTER,))
    assert 0 < len(log.read_all()) <= MAX_DEAD_LETTERS
    log.close()


def flood(sink: MemorySink) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sink.step()
