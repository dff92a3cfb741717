"""Alarms of a run: each tells its numbers, none is raised where all is well."""

from __future__ import annotations

from typing import Any

import pytest

from infra.report.alarms import find_alarms
from infra.report.facts import GenerationFacts, RoleFacts, StepFacts


def generation(number: int, **changes: Any) -> GenerationFacts:
    values: dict[str, Any] = {
        "generation": number,
        "proposed": 8,
        "valid": 7,
        "rejected": {},
        "win_rate": 0.4,
        "hint_win_rate": 0.6,
        "regret": 0.2,
        "regret_se": 0.05,
        "designer_reward": 0.5,
        "policy_version": number,
        "vendi": 0.6,
    }
    return GenerationFacts(**values | changes)


def step(number: int, ess: float = 0.9, lag: int = 1, samples: int = 64) -> StepFacts:
    return StepFacts(number, False, "", 0.0, {"agent": RoleFacts(samples, 0.0, ess, lag)}, {})


WELL = [generation(number) for number in range(12)]


def test_a_healthy_run_has_no_alarm() -> None:
    assert find_alarms(WELL, [step(number) for number in range(12)], {"agent": 1}) == []
    assert find_alarms([], []) == []


def test_samples_older_than_their_bound_are_named_with_step_and_role() -> None:
    (alarm,) = find_alarms(WELL, [step(0), step(1, lag=3)], {"agent": 1})
    assert "step 1: agent 3 > 1" in alarm


def test_low_effective_sample_size_is_told_with_its_lowest_step() -> None:
    (alarm,) = find_alarms(WELL, [step(0), step(1, ess=0.25), step(2, ess=0.1), step(3, ess=0.0, samples=0)])
    assert "2 of 4 steps" in alarm
    assert "lowest 0.10 (agent, step 2)" in alarm


def test_collapse_needs_two_windows_and_tells_both_ends() -> None:
    falling = [generation(number, vendi=0.6 - 0.04 * number) for number in range(12)]
    (alarm,) = find_alarms(falling, [])
    assert "from 0.52 to 0.24" in alarm
    assert find_alarms(falling[:9], []) == []
    more = [generation(number, vendi=0.6 / (1 + (number > 5)), valid=8 * (1 + (number > 5))) for number in range(12)]
    assert find_alarms(more, []) == [], "as many kinds among twice as many designs"
    fewer = [generation(number, valid=8 - 4 * (number > 5)) for number in range(12)]
    assert find_alarms(fewer, []) == []


@pytest.mark.parametrize(
    ("last", "alarmed"), [({"regret": -0.1}, True), ({"regret": -0.1, "regret_se": 0.2}, False), ({}, False)]
)
def test_regret_alarms_only_where_it_stays_below_zero_by_more_than_its_error(last: dict[str, Any], alarmed: bool) -> None:
    below = [generation(number, regret=-0.1) for number in range(4)]
    assert bool(find_alarms([*WELL, *below, generation(20, **last)], [])) is alarmed
