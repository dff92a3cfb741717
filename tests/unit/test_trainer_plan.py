"""The order of batches, by hand and against a slow definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.settings import ScheduleSettings
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
