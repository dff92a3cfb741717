"""`spade status` over the real log: with and without a store, once and live, and what makes an alarm."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from infra.cli.backlog import read_backlog, read_lags
from infra.cli.statusscreen import NO_STORE, Follower
from infra.clickhouse import ClickHouseStore, StoreAddress, connect
from infra.kafka import make_consumer, make_producer
from infra.local.ports import free_ports
from infra.local.store import LocalStore
from infra.report.standstill import STILL_S
from schemas.process import BrokerSettings
from schemas.topics import Topic
from tests.generatedrun import GeneratedRun

pytestmark = pytest.mark.integration

SPADE = [sys.executable, "-P", "-m", "infra.cli"]
DEADLINE_S = 240.0


@pytest.fixture
def run(broker_settings: BrokerSettings, run_id: str) -> GeneratedRun:
    """A run of six generations in the log, and a group that has read its designs but one."""
    made = GeneratedRun(run_id, 6)
    with make_producer(broker_settings) as producer:
        producer.send_all(made.pairs)
    read_all_but_one(broker_settings, f"spade-validate-{run_id}", Topic.ENV_PROPOSED)
    return made


@pytest.fixture
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


def read_all_but_one(broker: BrokerSettings, group: str, topic: Topic) -> None:
    """Commits every partition's end, and in the one that holds most a record less."""
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    consumer = make_consumer(broker, group, ())
    parts = [TopicPartition(topic.wire, number) for number in range(len(consumer.partitions_for_topic(topic.wire) or ()))]
    ends = consumer.end_offsets(parts)
    fullest = max(parts, key=lambda part: ends[part])
    consumer.assign(parts)
    consumer.commit({part: OffsetAndMetadata(ends[part] - (part == fullest), "", -1) for part in parts})
    consumer.close()


def spade_once(*arguments: str) -> str:
    environment = {**os.environ, "SPADE_STATE": "/nonexistent", "COLUMNS": "150"}
    answer = subprocess.run(
        [*SPADE, "status", *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_lags_are_told_by_topic_and_group(broker_settings: BrokerSettings, run: GeneratedRun) -> None:
    (row,) = read_lags(broker_settings, run.run_id)
    assert (row.group, row.topic, row.lag) == (f"spade-validate-{run.run_id}", Topic.ENV_PROPOSED.wire, 1)
    assert re.fullmatch(rf"{Topic.ENV_PROPOSED.wire}:\d+ at \d+ of \d+", row.position)
    (whole,) = read_backlog(broker_settings, run.run_id)
    assert (whole.group, whole.lag, whole.position) == (row.group, row.lag, row.position)


def test_once_it_prints_the_run_its_lags_and_says_what_is_missing_without_a_store(
    broker_settings: BrokerSettings, run: GeneratedRun
) -> None:
    told = spade_once("--once", "--broker", broker_settings.address, "--run", run.run_id)
    assert f"run {run.run_id}: running" in told
    assert "policy 6" in told
    assert "generation 5 closed" in told
    assert re.search(r"validate .*env-proposed .* 0\.0 .* 1 .*env-proposed:\d+ at \d+ of \d+", told)
    assert "None: staleness" in told
    assert NO_STORE in told


def test_with_a_store_it_shows_the_last_rejected_designs_escaped(
    broker_settings: BrokerSettings, store: LocalStore, client: ClickHouseStore, run: GeneratedRun
) -> None:
    run.fill(client)
    told = spade_once("--broker", broker_settings.address, "--store", store.dsn, "--run", run.run_id)  # no terminal: once
    assert "witness" in told
    assert "solution: env_error: NameError" in told
    assert "\x1b" not in told
    assert "\u202e" not in told


def test_a_store_that_is_away_takes_only_the_rejected_designs(broker_settings: BrokerSettings, run: GeneratedRun) -> None:
    (port,) = free_ports(1)
    away = ClickHouseStore(StoreAddress("127.0.0.1", port, "spade", "hunter-7", "spade"), timeout_s=5)
    with Follower(broker_settings, run.run_id, away) as follower:
        picture = follower.look()
    assert picture.status.generation == 5
    assert "can't reach store" in picture.missing
    assert "hunter-7" not in picture.missing


def test_a_rate_is_what_was_acknowledged_between_two_looks(broker_settings: BrokerSettings, run: GeneratedRun) -> None:
    with Follower(broker_settings, run.run_id, None) as follower:
        assert follower.look().rates == {}
        assert set(follower.look().rates.values()) == {0.0}
        with make_producer(broker_settings) as producer:
            producer.send_all([pair for pair in run.pairs if pair[0] is Topic.ENV_PROPOSED])
        read_all_but_one(broker_settings, f"spade-validate-{run.run_id}", Topic.ENV_PROPOSED)
        (rate,) = follower.look().rates.values()
        assert rate > 0


def test_a_run_without_a_record_for_too_long_is_an_alarm_until_it_has_finished(
    broker_settings: BrokerSettings, run_id: str
) -> None:
    old = GeneratedRun(run_id, 3, begun=time.time() - 3600)
    with make_producer(broker_settings) as producer:
        producer.send_all(old.pairs)
    with Follower(broker_settings, run_id, None) as follower:
        (alarm,) = follower.look().alarms
        assert alarm.startswith("standstill: no generation, step or policy for 3")
        with make_producer(broker_settings) as producer:
            producer.send_all(GeneratedRun(run_id, 3, finished=True, begun=old.begun).pairs[-1:])
        picture = follower.look()
    assert picture.status.state == "finished: all steps are trained"
    assert picture.alarms == []


def test_in_a_terminal_it_is_a_screen_that_goes_on_until_the_run_has_finished(
    broker_settings: BrokerSettings, run: GeneratedRun
) -> None:
    arguments = ["status", "--broker", broker_settings.address, "--run", run.run_id, "--every", "0.5"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "SPADE_STATE": "/nonexistent", "TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    process = subprocess.Popen([*SPADE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        shown = read_until(ours, "generation 5 closed")
        assert "\x1b[?1049h" in shown  # the other screen
        with make_producer(broker_settings) as producer:
            producer.send_all(GeneratedRun(run.run_id, 6, finished=True, begun=run.begun).pairs[-1:])
        rest = read_until(ours, "finished: all steps are trained")
        rest += read_until(ours, "\x1b[?1049l") if "\x1b[?1049l" not in rest else ""
        read_until(ours, None)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, wanted: str | None) -> str:
    """What the terminal shows up to `wanted`; None: to its end."""
    end = time.monotonic() + DEADLINE_S
    shown = ""
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.5)
        try:
            shown += os.read(terminal, 65536).decode(errors="replace") if ready else ""
        except OSError:  # the other side has closed
            if wanted is None:
                return shown
            break
        if wanted is not None and wanted in shown:
            return shown
    raise AssertionError(f"{wanted!r} did not come; shown: {shown[-3000:]}")


def test_the_limit_of_a_standstill_follows_the_longest_generation() -> None:
    from infra.report.standstill import StandStill, run_alarm, stage_alarm, still_limit_s

    assert still_limit_s([]) == STILL_S
    assert still_limit_s([0.0, 10.0, 20.0]) == STILL_S
    assert still_limit_s([0.0, 100.0, 500.0]) == 1200.0
    still = StandStill()
    assert still.note("g", "t", 5, 0.0) == 0.0
    assert still.note("g", "t", 5, 200.0) == 200.0
    assert still.note("g", "t", 6, 300.0) == 0.0
    assert stage_alarm("g", "t", 3, 200.0, 120.0).startswith("standstill: g has acknowledged nothing of t for 200 s while 3")
    assert stage_alarm("g", "t", 0, 200.0, 120.0) == ""
    assert stage_alarm("g", "t", 3, 100.0, 120.0) == ""
    assert run_alarm(0.0, 1e9, 120.0) == ""
