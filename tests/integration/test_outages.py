"""Broker and store go away in mid-run: within the limits all waits and goes on, beyond them each says why it stopped."""

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
    await_batches,
    await_exits,
    count_batches,
    expected_plan,
    logged_plan,
    make_recipe,
    open_inputs,
    start_run,
)
from tests.streamworld import Shares

# kafka-python leaves the sockets of refused connections to the garbage collector.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
__all__ = ["make_recipe", "start_run"]  # fixtures
PATIENT_S, HASTY_S = 100.0, 10.0  # a broker starts within the first on any machine; with the stages' own ends both stay below
# the two minutes that a producer waits


@pytest.fixture(autouse=True)
def collected_here() -> Iterator[None]:
    """Such sockets are closed before the next test, which would be blamed for them. Made first, so ended last."""
    yield
    gc.collect()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker that the test may stop."""
    local = LocalBroker.start(tmp_path / "broker")
    create_topics(BrokerSettings(address=local.address), partitions=4)
    yield local
    local.stop()


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[LocalStore]:
    """A store that the test may stop."""
    local = LocalStore.start(tmp_path / "store")
    migrate(local.dsn)
    yield local
    local.stop()


def test_stages_wait_for_a_broker_that_comes_back_and_say_why_they_end_when_it_does_not(
    start_run: Callable[..., tuple[Pool, Processes]],
    make_recipe: Callable[..., Recipe],
    own_broker: LocalBroker,
    run_id: str,
) -> None:
    recipe, shares = make_recipe(schedule__steps=24), Shares(non_finite=0.0, unequal=0.0)
    settings = BrokerSettings(address=own_broker.address, away_s=PATIENT_S)
    hasty = settings.model_copy(update={"away_s": HASTY_S})
    pool, processes = start_run(recipe, shares, broker=settings)
    await_batches(pool, processes, 2)
    first = {name: process.pid for name, process in processes.started.items()}
    own_broker.stop()
    time.sleep(4.0)
    own_broker.restart()
    await_batches(pool, processes, 5)
    assert {name: process.pid for name, process in processes.started.items()} == first, "they waited"

    patient, processes.context = processes.context, processes.context.model_copy(update={"broker": hasty})
    for stage in Stage:
        processes.stop(stage.value)
        processes.start(stage.value)
    await_batches(pool, processes, 14)  # more than was asked for before: all four are at work
    own_broker.kill()
    for name, process in processes.started.items():
        assert process.wait(PATIENT_S) == 1, processes.told(name)
        assert f"BrokerError: broker {hasty.address} has been away for {HASTY_S:.0f} s" in processes.told(name)
    own_broker.restart()
    processes.context = patient
    for stage in Stage:
        processes.start(stage.value)
    await_batches(pool, processes, count_batches(recipe))
    await_exits(processes)
    assert logged_plan(settings, recipe, run_id) == expected_plan(recipe, run_id, shares)
    assert open_inputs(settings, run_id) == []


def test_memory_and_the_designers_that_need_it_wait_for_a_store_that_comes_back(
    start_run: Callable[..., tuple[Pool, Processes]],
    make_recipe: Callable[..., Recipe],
    own_store: LocalStore,
    broker_settings: BrokerSettings,
    run_id: str,
) -> None:
    recipe, shares = make_recipe(memory__enabled=True), Shares(non_finite=0.0, unequal=0.0)
    own_store.kill()
    pool, processes = start_run(recipe, shares, own_store.dsn)
    processes.start("memory")
    await_batches(pool, processes, recipe.schedule.interval)  # generation 2 needs what memory will hold of generation 0
    time.sleep(6.0)
    assert_alive(processes.started)
    assert not [batch for batch in pool.batches if batch >= 2 * recipe.schedule.interval], "generation 2 was not designed"
    own_store.restart()
    await_batches(pool, processes, count_batches(recipe))
    await_exits(processes)
    assert logged_plan(broker_settings, recipe, run_id) == expected_plan(recipe, run_id, shares)
    assert open_inputs(broker_settings, run_id) == []


def assert_alive(started: dict[str, subprocess.Popen[Any]]) -> None:
    """Nobody gave up."""
    assert [name for name, process in started.items() if process.poll() is not None] == []
