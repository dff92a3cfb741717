"""The fixed schedule: its numbers, and that random timing neither stops it nor changes what it decides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.settings import Recipe, ScheduleSettings
from schemas.topics import Topic
from schemas.train import BatchReady
from streams.schedule import Schedule
from tests.streamworld import Shares, World, ended_schedule, small_recipe


def make_schedule(**values: Any) -> Schedule:
    return Schedule(ScheduleSettings(**values))


def test_example_of_one_step_generations() -> None:
    schedule = make_schedule(steps=10, interval=1, delay=1, lag=1, lead=1, memory_lag=2)
    assert schedule.design_version(3) == 1
    assert schedule.memory_generation(3) == 1
    assert schedule.play_version(3) == 2
    assert schedule.designer_due(3) == 2
    assert (schedule.agent_lag_max, schedule.designer_lag_max) == (1, 3)


def test_example_of_four_step_generations() -> None:
    schedule = make_schedule(steps=40, interval=4, delay=4, lag=1, lead=4, memory_lag=2)
    assert schedule.design_version(2) == 3
    assert list(schedule.steps_of(2)) == [8, 9, 10, 11]
    assert [schedule.play_version(step) for step in schedule.steps_of(2)] == [7, 8, 9, 10]
    assert schedule.designer_step(2) == 12
    assert schedule.designer_due(12) == 2
    assert schedule.designer_due(13) is None


def test_first_generations_come_from_version_zero_and_remember_nothing() -> None:
    schedule = make_schedule(steps=8, interval=4, delay=4, lag=1, lead=4, memory_lag=2)
    assert [schedule.design_version(g) for g in range(2)] == [0, 0]
    assert [schedule.memory_generation(g) for g in range(4)] == [None, None, 0, 1]


def test_drain_batches_keep_their_numbers_and_follow_the_last_step() -> None:
    schedule = make_schedule(steps=8, interval=4, delay=8)
    assert list(schedule.batches()) == [*range(8), 8, 12]
    assert [schedule.is_drain(step) for step in (7, 8, 12)] == [False, True, True]
    assert [schedule.next_batch(step) for step in (-1, 7, 8, 12)] == [0, 8, 12, None]


def test_run_that_is_ended_drains_after_its_last_generation_and_the_first_word_counts() -> None:
    schedule = make_schedule(steps=400, interval=4, delay=4).ended_at(1).ended_at(7)
    assert list(schedule.batches()) == [*range(8), 8]
    assert schedule.designer_due(8) == 1
    assert schedule.designer_due(12) is None


def run_worlds(recipe: Recipe, shares: Shares, seed: int, restart: float, end_at: int) -> tuple[World, World]:
    undisturbed, disturbed = World(recipe, shares, 0, end_at=end_at), World(recipe, shares, seed, restart=restart, end_at=end_at)
    undisturbed.run()
    disturbed.run()
    return undisturbed, disturbed


def assert_trained_once(world: World) -> None:
    """Every batch of the schedule is there in order, and every design and play of a member is in exactly one."""
    batches = [record for record in world.records(Topic.BATCH_READY) if isinstance(record, BatchReady)]
    schedule = ended_schedule(world)
    assert [batch.step for batch in batches] == list(schedule.batches())
    trained = Counter(sample.sample_id for batch in batches for sample in batch.samples)
    assert set(trained.values()) <= {1}
    designs = {
        design.env_id
        for record in world.records(Topic.GENERATION_CLOSED)
        for design in getattr(record, "designs", [])
        if design.trained
    }
    assert designs <= trained.keys()
    for batch in batches:
        limits = {"agent": schedule.agent_lag_max, "designer": schedule.designer_lag_max}
        assert all(0 <= sample.lag <= limits[sample.role] for sample in batch.samples)
        assert all(sample.versions.oldest == sample.policy_version == batch.step - sample.lag for sample in batch.samples)


schedules = st.builds(
    lambda interval, generations, extra, lag, lead, memory_lag: {
        "steps": interval * generations,
        "interval": interval,
        "delay": interval + extra,
        "lag": lag,
        "lead": lead,
        "memory_lag": memory_lag,
    },
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 3),
)
failures = st.builds(
    Shares,
    invalid=st.sampled_from([0.0, 0.3, 1.0]),
    lost_play=st.sampled_from([0.0, 0.1, 1.0]),
    non_finite=st.sampled_from([0.0, 0.05]),
    unequal=st.sampled_from([0.0, 0.3]),
    empty_generation=st.sampled_from([-1, 0, 1]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedules,
    failures,
    st.integers(1, 10**6),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([-1, 1, 2]),
    st.sampled_from([0, 2]),
    st.sampled_from([0, 2]),
)
def test_random_timing_and_restarts_give_one_plan_without_deadlock(
    schedule: dict[str, int], shares: Shares, seed: int, restart: float, end_at: int, earlier: int, probes: int
) -> None:
    checked = {"rollout__earlier_plays": earlier, "rollout__earlier_steps": earlier}
    probed = {"memory__enabled": True, "memory__probe_environments": probes, "memory__probe_plays": 2}
    recipe = small_recipe(schedule=schedule, **checked, **probed)
    undisturbed, disturbed = run_worlds(recipe, shares, seed, restart, end_at)
    for world in (undisturbed, disturbed):
        assert_trained_once(world)
        assert world.unread() == []
    assert disturbed.plan() == undisturbed.plan()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frequent_restarts_of_every_stage_change_nothing(seed: int) -> None:
    undisturbed, disturbed = run_worlds(small_recipe(), Shares(), seed, 0.05, -1)
    assert disturbed.restarts > 20
    assert_trained_once(disturbed)
    assert disturbed.unread() == []
    assert disturbed.plan() == undisturbed.plan()


def test_published_settings_run_to_their_end() -> None:
    recipe = small_recipe(algorithm="published", schedule__memory_lag=1)
    assert not recipe.rollout.paired
    undisturbed, disturbed = run_worlds(recipe, Shares(), 5, 0.0, -1)
    assert_trained_once(disturbed)
    assert disturbed.plan() == undisturbed.plan()
