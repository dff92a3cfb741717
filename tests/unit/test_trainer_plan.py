"""The order of batches, by hand and against a slow definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from schemas.common import Reference
from schemas.errors import TrainingError
from schemas.settings import ScheduleSettings
from schemas.train import AGENT, DESIGNER, BatchReady, RoleStats, Sample, StepFinished
from trainer.loop import warn_of_drift
from trainer.plan import TrainPlan


def order(plan: TrainPlan) -> list[int]:
    numbers, last = [], -1
    while (number := plan.following(last)) is not None:
        numbers.append(number)
        last = number
    return numbers


def test_after_the_steps_comes_the_last_generations_drain() -> None:
    plan = TrainPlan(ScheduleSettings(steps=8, interval=4, delay=4))
    assert order(plan) == [*range(8), 8]
    assert plan.drains == (8,)


def test_a_long_delay_leaves_several_drains_that_keep_their_numbers() -> None:
    plan = TrainPlan(ScheduleSettings(steps=12, interval=4, delay=8))
    assert order(plan) == [*range(12), 12, 16]


def test_an_ending_cuts_the_plan_after_its_last_generation() -> None:
    settings = ScheduleSettings(steps=40, interval=4, delay=8)
    assert order(TrainPlan(settings, last_generation=1)) == [*range(8), 8, 12]
    assert order(TrainPlan(settings, last_generation=-1)) == []
    assert order(TrainPlan(settings, last_generation=99)) == order(TrainPlan(settings))


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 7), st.integers(-1, 7))
def test_every_generations_designs_are_trained_in_exactly_one_batch(k: int, count: int, more: int, last: int) -> None:
    settings = ScheduleSettings(steps=k * count, interval=k, delay=k + more)
    numbers = order(TrainPlan(settings, last))
    generations = min(count, last + 1)
    assert numbers == sorted(set(range(generations * k)) | {g * k + k + more for g in range(generations)})


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 4), st.integers(0, 60), st.integers(2, 6), st.integers(0, 9))
def test_kept_versions_hold_all_that_open_work_may_name(k: int, lag: int, lead: int, last: int, keep: int, behind: int) -> None:
    settings = ScheduleSettings(steps=k * 20, interval=k, delay=k, lag=lag, lead=lead)
    kept = TrainPlan(settings).needed_versions(last, keep, behind)
    newest = last + 1
    assert {0, *range(max(0, newest - keep + 1), newest + 1)} <= kept
    for step in range(last + 1, last + 1 + 2 * k):  # not trained yet: its plays, and its generation's designs, may be open
        play, design = max(0, step - lag), max(0, step // k * k - lag - lead)
        assert play in kept or play > newest
        assert design in kept or design > newest
        earlier = max(0, play - behind)
        assert earlier in kept or earlier > newest or step % k


def test_a_version_of_every_so_many_generations_is_kept_for_good() -> None:
    plan = TrainPlan(ScheduleSettings(steps=80, interval=4, delay=4, lag=1, lead=1))
    kept = plan.needed_versions(49, 2, every=3)
    assert {0, 12, 24, 36, 48} <= kept
    assert kept - set(range(44, 51)) == {0, 12, 24, 36}


def batch_of(step: int, role: str, version: int) -> BatchReady:
    place = Reference(topic="t", partition=0, offset=0, id="one")
    sample = Sample(reference=place, sample_id="one", role=role, advantage=1.0, policy_version=version, lag=step - version)
    return BatchReady(run_id="r", event_id="b", step=step, generation=0, designer_generation=-1, samples=[sample])


def test_samples_within_their_roles_bound_pass_and_older_or_newer_ones_stop_the_trainer() -> None:
    plan = TrainPlan(ScheduleSettings(steps=12, interval=2, delay=2, lag=1, lead=2))
    for role, bound in ((AGENT, 1), (DESIGNER, 5)):
        plan.check_age(batch_of(8, role, 8 - bound))
        with pytest.raises(TrainingError, match=rf"batch 8 holds sample one \({role}\) .* 0 to {bound} are allowed"):
            plan.check_age(batch_of(8, role, 7 - bound))
    with pytest.raises(TrainingError, match="-1 versions old"):
        plan.check_age(batch_of(8, AGENT, 9))


def test_a_role_below_the_floor_of_effective_samples_is_warned_of_and_no_other() -> None:
    roles = {
        AGENT: RoleStats(samples=4, ess=0.29, lag_max=1),
        DESIGNER: RoleStats(samples=4, ess=0.31),
        "none": RoleStats(ess=0.0),
    }
    with capture_logs() as lines:
        warn_of_drift(StepFinished(run_id="r", event_id="s", step=3, drain=False, roles=roles))
    (line,) = lines
    assert (line["log_level"], line["step"], line["role"], line["ess"], line["floor"]) == ("warning", 3, AGENT, 0.29, 0.3)
