"""What every record source does alike: the log itself, an archive of it, and the list that unit tests read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.archive import Archive, ArchiveWriter
from infra.kafka import make_producer
from infra.recordsource import BrokerSource, LogRecord, RecordSource
from schemas.codec import encode
from schemas.common import Record
from schemas.process import BrokerSettings
from schemas.topics import Topic
from tests.fakes.recordsource import ListSource

pytestmark = pytest.mark.integration

OneOfEach = Callable[[str], list[tuple[Topic, Record]]]


@pytest.fixture
def written(broker_settings: BrokerSettings, run_id: str, one_of_each: OneOfEach) -> list[LogRecord]:
    """The run's records as they stand in the log, among those of another run; in the order of the topics."""
    sent, began_ms = {}, time.time() * 1000
    with make_producer(broker_settings) as producer:
        for name in (run_id, f"{run_id}-other", run_id):
            pairs = one_of_each(name)
            for place, pair in zip(producer.send_all(pairs), pairs, strict=True):
                if name == run_id:
                    sent[place.topic, place.partition, place.offset] = pair
    found = list(BrokerSource(broker_settings).scan(list(Topic), run_id))
    assert {(one.topic.wire, one.partition, one.offset): (one.topic, one.record) for one in found} == sent
    assert all(began_ms - 1000 <= one.timestamp_ms <= time.time() * 1000 + 1000 for one in found)
    assert all(one.data == encode(one.record) and one.key for one in found)
    return found


@pytest.fixture(params=["log", "archive", "list"])
def source(
    request: pytest.FixtureRequest, broker_settings: BrokerSettings, run_id: str, written: list[LogRecord], tmp_path: Path
) -> RecordSource:
    if request.param == "log":
        return BrokerSource(broker_settings)
    if request.param == "list":
        listed = ListSource()
        listed.held = list(reversed(written))
        return listed
    with ArchiveWriter(tmp_path / "a") as writer:
        for one in written:
            writer.write(one)
        writer.finish(run_id, "x", "the log", 1.0)
    return Archive(tmp_path / "a")


def test_a_scan_gives_a_runs_records_in_one_order_each_time(source: RecordSource, run_id: str, written: list[LogRecord]) -> None:
    topics = list(Topic)
    assert list(source.scan(topics, run_id)) == written
    assert list(source.scan(topics, run_id)) == written, "a second scan begins at the beginning"
    order = [(topics.index(one.topic), one.partition, one.offset) for one in written]
    assert order == sorted(order)


def test_a_scan_gives_the_topics_that_are_asked_for_and_in_their_order(
    source: RecordSource, run_id: str, written: list[LogRecord]
) -> None:
    chosen = [Topic.ROLLOUT_FINISHED, Topic.RUN_STARTED]
    expected = [one for topic in chosen for one in written if one.topic is topic]
    assert list(source.scan(chosen, run_id)) == expected
    assert len(expected) == 4


def test_a_scan_without_a_run_gives_those_of_all_and_of_an_unknown_run_none(
    source: RecordSource, run_id: str, written: list[LogRecord]
) -> None:
    every = list(source.scan([Topic.ENV_PROPOSED]))
    assert [one for one in every if one.record.run_id == run_id] == [one for one in written if one.topic is Topic.ENV_PROPOSED]
    assert list(source.scan(list(Topic), "nobody")) == []


def test_a_scan_can_be_left_before_its_end(source: RecordSource, run_id: str, written: list[LogRecord]) -> None:
    scan = source.scan(list(Topic), run_id)
    assert next(iter(scan)) == written[0]
    scan.close()  # type: ignore[attr-defined]  # a generator
    assert next(iter(source.scan(list(Topic), run_id))) == written[0]
