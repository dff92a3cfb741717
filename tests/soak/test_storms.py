"""Storms over real runs, for `make soak`: random kills by seed, tides of stages, a broker and a store that are gone for long.

Each test prints what it saw. SOAK_KILLS (50) and SOAK_SEED (1) choose the storm, SOAK_DIR keeps its folders.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.chaos.evidence import read_evidence
from infra.cli.backlog import read_status
from infra.cli.chaos import check_evidence, show_findings
from infra.cli.launch import Services
from infra.cli.options import read_recipe
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.migrate import migrate
from infra.topics import create_topics
from schemas.process import BrokerSettings
from schemas.settings import Recipe
from streams.stage import Stage
from tests.integration.test_streams_loop import (
    Pool,
    Processes,
    await_exits,
    count_batches,
    expected_plan,
    logged_plan,
    make_recipe,
    open_inputs,
    start_run,
)
from tests.streamworld import Shares

pytestmark = pytest.mark.soak
__all__ = ["make_recipe", "start_run"]  # fixtures
KILLS = int(os.environ.get("SOAK_KILLS", "50"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
STEPS = int(os.environ.get("SOAK_STEPS", "60"))
RUN_LIMIT_S = 1800.0
SPADE = [sys.executable, "-P", "-m", "infra.cli"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test's runs lie."""
    named = os.environ.get("SOAK_DIR", "")
    return Path(named).resolve() if named else tmp_path


def test_random_kills_change_nothing(folder: Path) -> None:
    storm = ["--kills", str(KILLS), "--seed", str(SEED), "--minutes", str(RUN_LIMIT_S / 60)]
    size = ["--set", f"schedule.steps={STEPS}"]
    command = [*SPADE, "chaos", "tiny", *storm, *size, "--dir", str(folder / "chaos")]
    answer = subprocess.run(command, timeout=2 * RUN_LIMIT_S, check=False)
    assert answer.returncode == 0


def test_tides_and_kills_of_stages_every_few_seconds_leave_one_plan(
    start_run: Callable[..., tuple[Pool, Processes]],
    make_recipe: Callable[..., Recipe],
    broker_settings: BrokerSettings,
    run_id: str,
) -> None:
    recipe, shares = make_recipe(schedule__steps=200), Shares(non_finite=0.0, unequal=0.0)
    pool, processes = start_run(recipe, shares)
    draw, moves = random.Random(SEED), 0
    names = {stage.value: [stage.value] for stage in Stage}
    end = time.monotonic() + RUN_LIMIT_S
    while len(pool.batches) < count_batches(recipe):
        assert pool.problem is None, pool.problem
        assert time.monotonic() < end
        time.sleep(draw.uniform(1.0, 3.0))
        stage = draw.choice(sorted(names))
        living = names[stage]
        if len(living) < 2 or (len(living) < 3 and draw.random() < 0.5):
            living.append(f"{stage} {moves}")
            processes.start(stage, living[-1])
        else:
            leaver = processes.started.pop(living.pop(draw.randrange(len(living))))
            leaver.send_signal(draw.choice([signal.SIGTERM, signal.SIGKILL]))
            leaver.wait(60)
        moves += 1
    await_exits(processes)
    print(f"tides: {moves} starts, stops and kills of stages over {len(pool.batches)} batches")  # noqa: T201
    assert logged_plan(broker_settings, recipe, run_id) == expected_plan(recipe, run_id, shares)
    assert open_inputs(broker_settings, run_id) == []


@contextmanager
def services(folder: Path) -> Iterator[tuple[LocalBroker, LocalStore]]:
    """A broker and a store that a run does not own."""
    broker = LocalBroker.start(folder / "named-broker")
    store = LocalStore.start(folder / "named-store")
    try:
        create_topics(BrokerSettings(address=broker.address), partitions=read_recipe("tiny").partitions)
        migrate(store.dsn)
        yield broker, store
    finally:
        store.stop()
        broker.stop()


@contextmanager
def real_run(folder: Path, broker: str, store: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`spade run` with a named broker and store, ended by its id where the body leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SPADE_BROKER": broker, "SPADE_STORE": store}
    with (folder / "said").open("ab") as log:
        process = subprocess.Popen([*SPADE, "run", *arguments], stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(120)


def await_step(broker: BrokerSettings, run_id: str, step: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + RUN_LIMIT_S
    while read_status(broker, run_id).step < step:
        assert process.poll() is None, f"the run ended with {process.returncode}"
        assert time.monotonic() < end
        time.sleep(1.0)


def assert_held(broker: BrokerSettings, store: str, run_id: str) -> None:
    findings = check_evidence(read_evidence(broker, run_id), Services(broker=broker, store_dsn=store))
    show_findings(findings)
    assert all(finding.holds for finding in findings)


def test_broker_gone_for_half_a_minute_and_store_for_a_whole_one_are_waited_for(folder: Path) -> None:
    run_id, home = "soak-outages", folder / "outages"
    with services(home) as (broker, store):
        settings = BrokerSettings(address=broker.address)
        begin = ("tiny", "--id", run_id, "--dir", str(home / "run"), "--set", "schedule.steps=8")
        with real_run(home, broker.address, store.dsn, *begin) as process:
            await_step(settings, run_id, 0, process)
            broker.stop()
            time.sleep(30.0)
            broker.restart()
            await_step(settings, run_id, 2, process)
            store.kill()
            time.sleep(60.0)
            store.restart()
            assert process.wait(RUN_LIMIT_S) == 0, (home / "said").read_text()[-3000:]
        assert_held(settings, store.dsn, run_id)


def test_broker_gone_for_longer_than_its_limit_stops_the_run_with_its_cause_and_a_resume_goes_on(folder: Path) -> None:
    run_id, home = "soak-limit", folder / "limit"
    with services(home) as (broker, store):
        settings = BrokerSettings(address=broker.address, away_s=10, timeout_s=5)
        named = home / "broker.toml"
        named.write_text(f'address = "{broker.address}"\naway_s = 10\ntimeout_s = 5\n')
        begin = ("tiny", "--id", run_id, "--dir", str(home / "run"))
        with real_run(home, str(named), store.dsn, *begin, "--set", "processes.restarts=1") as process:
            await_step(settings, run_id, 0, process)
            broker.kill()
            assert process.wait(300) != 0
        said = (home / "said").read_text().splitlines()[-1]
        print(f"beyond its limit: {said}")  # noqa: T201
        assert said.startswith("error: ")
        assert broker.address in said
        broker.restart()
        with real_run(home, str(named), store.dsn, "--resume", str(home / "run")) as process:
            assert process.wait(RUN_LIMIT_S) == 0, (home / "said").read_text()[-3000:]
        assert_held(settings, store.dsn, run_id)
