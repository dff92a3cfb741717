"""A worker that stood still for longer than its session comes back to no effect; pools grow and shrink without a loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.chaos.evidence import Evidence, LogFollower
from infra.kafka_groups import pool_group
from infra.runs import Run
from schemas.process import BrokerSettings, ProcessContext
from schemas.topics import Topic
from streams.watchdog import read_group
from tests.echoworkers import Member, Tide, ask, finish, write_run

pytestmark = pytest.mark.integration
Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def run(broker_settings: BrokerSettings, run_id: str) -> Run:
    return write_run(broker_settings, run_id)


@pytest.fixture
def start(broker_settings: BrokerSettings, run: Run, tmp_path: Path) -> Iterator[Start]:
    """Starts an echo worker in a folder of that name; what lives at the end is killed by its id."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(name: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        context = ProcessContext(broker=broker_settings, run_id=run.run_id).model_dump_json()
        command = [sys.executable, "-m", "tests.echoworkers", context, str(folder), "0.02"]
        with (folder / "log").open("ab") as log:
            begun.append(subprocess.Popen(command, stdout=log, stderr=log))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()  # also one that is stopped
        process.wait(10)


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)


@pytest.fixture
def log(broker_settings: BrokerSettings, run: Run) -> Iterator[Callable[[], Evidence]]:
    """What the log says of the run now."""
    follower = LogFollower(broker_settings, Evidence(run.run_id))

    def read() -> Evidence:
        follower.catch_up()
        return follower.evidence

    yield read
    follower.close()


def uncommitted(broker: BrokerSettings, run: Run) -> dict[tuple[str, int], int]:
    """Partitions of the echo pool whose commit stands before their end."""
    group, all_parts = pool_group("work-echo", run.run_id), [(Topic.DESIGN_REQUESTED.wire, number) for number in range(12)]
    parts = read_group(broker, group, all_parts, {}, {})
    return {part: seen.end - seen.next for part, seen in parts.items() if seen.next < seen.end}


def test_late_results_of_a_worker_that_was_stopped_for_longer_than_its_session_are_copies_that_change_nothing(
    broker_settings: BrokerSettings, run: Run, start: Start, log: Callable[[], Evidence], tmp_path: Path
) -> None:
    units = range(6)
    ask(broker_settings, run.run_id, units)
    (tmp_path / "stalled").mkdir()
    (tmp_path / "stalled" / "hold").touch()
    stalled = start("stalled")
    wait_for(lambda: any((tmp_path / "stalled").glob("began-*")))
    os.kill(stalled.pid, signal.SIGSTOP)

    other = start("other")
    wait_for(lambda: len(log().designs_written) == len(units))  # the stopped one's unit among them
    places = dict(log().places[Topic.ENV_PROPOSED])

    (tmp_path / "stalled" / "hold").unlink()
    os.kill(stalled.pid, signal.SIGCONT)
    wait_for(lambda: log().copies[Topic.ENV_PROPOSED] > 0)
    finish(broker_settings, run.run_id)
    assert [process.wait(60) for process in (stalled, other)] == [0, 0], (tmp_path / "stalled" / "log").read_text()

    seen = log()
    assert seen.places[Topic.ENV_PROPOSED] == places, "the first copies stand where they stood"
    assert seen.unequal == []
    assert uncommitted(broker_settings, run) == {}


def test_a_pool_that_grows_and_shrinks_every_second_answers_every_unit_and_commits_to_the_end(
    broker_settings: BrokerSettings, run: Run, log: Callable[[], Evidence]
) -> None:
    units = 60
    ask(broker_settings, run.run_id, range(units))
    tide = Tide(lambda: Member(broker_settings, run, lambda record: time.sleep(0.2)), seed=5)
    for _ in range(6):
        time.sleep(1.0)
        tide.move()
    finish(broker_settings, run.run_id)
    assert tide.end(120.0) == []
    assert len(tide.gone) >= 2
    assert len(log().designs_written) == units
    assert not [why for why in log().designs_written.values() if why]
    assert log().unequal == []
    assert uncommitted(broker_settings, run) == {}
