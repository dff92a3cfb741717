"""The free schedule: whatever the timing, each planned group is trained once within its bound, and stale ones are played anew."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import SettingsError
from schemas.rollout import RolloutRequested
from schemas.score import EnvScored
from schemas.settings import Recipe, ScheduleSettings
from schemas.topics import Topic
from schemas.train import AGENT, BatchReady
from streams.assembly import trained_arms
from tests.streamworld import Shares, World, ended_schedule, small_recipe


def free_recipe(**overrides: Any) -> Recipe:
    return small_recipe(schedule__kind="free", **overrides)


def ended(recipe: Recipe, shares: Shares, seed: int, **more: Any) -> World:
    world = World(recipe, shares, seed, **more)
    world.run()
    return world


def batches_of(world: World) -> list[BatchReady]:
    return [record for record in world.records(Topic.BATCH_READY) if isinstance(record, BatchReady)]


def assert_exact(world: World) -> None:
    """Batches in order, each sample within its bound, and of each planned group the last repeat and no other is trained."""
    batches, schedule = batches_of(world), ended_schedule(world)
    assert [batch.step for batch in batches] == list(schedule.batches())
    trained = Counter(sample.sample_id for batch in batches for sample in batch.samples)
    assert set(trained.values()) <= {1}
    advantages = {sample.sample_id: sample.advantage for batch in batches for sample in batch.samples}
    limits = world.recipe.schedule.lag_limit
    for batch in batches:
        assert all(0 <= sample.lag <= limits(sample.role) for sample in batch.samples)
        assert all(sample.versions.oldest in (-1, batch.step - sample.lag) for sample in batch.samples)
    groups: dict[tuple[str, int], dict[int, EnvScored]] = defaultdict(dict)
    for record in world.records(Topic.ENV_SCORED):
        if isinstance(record, EnvScored):
            groups[record.env_id, record.step][record.repeat] = record
    members = {
        (member.env_id, step)
        for slots in world.records(Topic.SLOTS_CLOSED)
        for member in getattr(slots, "members", [])
        for step in schedule.steps_of(getattr(slots, "generation", -1))
    }
    assert groups.keys() >= members
    evicted = {env_id for (env_id, _), repeats in groups.items() for one in repeats.values() if one.evicted}
    stale = 0
    for env_id, step in members:
        repeats = groups[env_id, step]
        assert sorted(repeats) == list(range(len(repeats)))
        for repeat, scored in repeats.items():
            ids = [play.play_id for arm in scored.arms if arm.arm in trained_arms(world.recipe) for play in arm.plays]
            times = {trained[play_id] for play_id in ids}
            if repeat < max(repeats):
                assert times == {0}
                stale += len(ids)
            else:
                assert times <= {1} or (env_id in evicted and times == {0})
                if times == {1}:
                    for arm in scored.arms:  # its advantages are its own, though another step's group may lie in the same batch
                        own = [advantages[play.play_id] for play in arm.plays if play.play_id in advantages]
                        assert sum(own) == pytest.approx(0, abs=1e-6)
    assert sum(batch.stale for batch in batches) == stale
    designs = {
        design.env_id
        for record in world.records(Topic.GENERATION_CLOSED)
        for design in getattr(record, "designs", [])
        if design.trained
    }
    assert designs <= trained.keys()
    assert world.unread() == []


def assert_copies_are_equal(world: World) -> None:
    """What stages write again after a restart is what they wrote before."""
    first: dict[str, Any] = {}
    for (topic, _), records in world.log.items():
        if topic in (Topic.BATCH_READY, Topic.GENERATION_CLOSED, Topic.ENV_SCORED, Topic.ROLLOUT_REQUESTED):
            for record in records:
                assert first.setdefault(record.event_id, record) == record


schedules = st.builds(
    lambda interval, generations, extra, lag, lead, memory_lag, slack: {
        "kind": "free",
        "steps": interval * generations,
        "interval": interval,
        "delay": interval + extra,
        "lag": lag,
        "lead": lead,
        "memory_lag": memory_lag,
        "max_lag_agent": None if slack < 0 else lag + slack,
    },
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(-1, 2),
)
failures = st.builds(
    Shares,
    invalid=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    lost_play=st.sampled_from([0.0, 0.1, 1.0]),
    non_finite=st.sampled_from([0.0, 0.05]),
    unequal=st.sampled_from([0.0, 0.3]),
    empty_generation=st.sampled_from([-1, 0, 1]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedules,
    failures,
    st.integers(1, 10**6),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([-1, 1, 2]),
    st.sampled_from([0, 2]),
    st.booleans(),
)
def test_random_timing_failures_and_restarts_end_with_every_planned_group_trained_once(
    schedule: dict[str, Any], shares: Shares, seed: int, restart: float, end_at: int, earlier: int, hints: bool
) -> None:
    recipe = small_recipe(schedule=schedule, rollout__earlier_plays=earlier, rollout__train_hint_arm=hints)
    world = ended(recipe, shares, seed, restart=restart, end_at=end_at)
    assert_exact(world)
    assert_copies_are_equal(world)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frequent_restarts_of_every_stage_lose_and_double_nothing(seed: int) -> None:
    world = ended(free_recipe(schedule__max_lag_agent=1), Shares(), seed, restart=0.05)
    assert world.restarts > 20
    assert_exact(world)
    assert_copies_are_equal(world)


def test_stale_groups_are_counted_and_played_again_under_new_ids_on_the_same_seeds() -> None:
    counted = 0
    for seed in range(1, 9):
        world = ended(free_recipe(schedule__max_lag_agent=1, schedule__steps=12), Shares(), seed)
        assert_exact(world)
        again = [one for one in world.records(Topic.ROLLOUT_REQUESTED) if isinstance(one, RolloutRequested) and one.repeat]
        first = {play.play_id: play for one in world.records(Topic.ROLLOUT_REQUESTED) for play in getattr(one, "plays", [])}
        for unit in again:
            assert all(play.arm == "plain" for play in unit.plays)
            for play in unit.plays:
                same = (play.env_id, play.index, play.env_seed)
                seeds = [one.sampling_seed for one in first.values() if (one.env_id, one.index, one.env_seed) == same]
                assert len(set(seeds)) == len(seeds) > 1
        counted += sum(batch.asked_again for batch in batches_of(world))
    assert counted > 0


def test_plays_are_by_a_newer_policy_than_the_fixed_schedule_would_take() -> None:
    fresher = 0
    for seed in range(1, 5):
        world = ended(free_recipe(schedule__lag=3), Shares(), seed)
        lags = [(batch.step, one.lag) for batch in batches_of(world) for one in batch.samples if one.role == AGENT]
        fresher += sum(lag < min(3, step) for step, lag in lags)
    assert fresher > 0


def test_bounds_by_role_default_to_what_the_schedule_needs_and_smaller_ones_are_refused() -> None:
    free = ScheduleSettings(kind="free", steps=8, interval=4, delay=4, lag=1, lead=4)
    assert (free.lag_limit("agent"), free.lag_limit("designer")) == (5, 9)
    wide = ScheduleSettings(kind="free", steps=8, lag=1, max_lag_agent=2, max_lag_designer=20)
    assert (wide.lag_limit("agent"), wide.lag_limit("designer")) == (2, 20)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"schedule__kind": "free", "schedule__max_lag_agent": 0}, r"max_lag_agent \(0\) must be at least lag \(1\)"),
        ({"schedule__kind": "free", "schedule__max_lag_designer": 4}, r"at least lag \+ lead \+ delay \(5\), .* lower lead"),
        ({"schedule__max_lag_agent": 5}, 'are for kind = "free"'),
        ({"schedule__kind": "free", "rollout__earlier_plays": 2, "rollout__earlier_steps": 2}, "earlier_steps must be 0"),
    ],
)
def test_what_can_not_be_is_refused_with_the_reason(overrides: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        small_recipe(**overrides)
