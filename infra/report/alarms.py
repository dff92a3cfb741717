"""What should worry who runs it: alarms over a run's generations and steps. Pure; shown by the report and by `spade status`.

In: generations and steps in order. Out: one sentence an alarm, with its numbers. Every threshold stands here, with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from infra.report.facts import GenerationFacts, StepFacts

ESS_FLOOR: Final = 0.3
"""Effective samples / samples below which the correction leaves too little to learn from (shared by trainer and picture)."""
DIVERSITY_KEPT: Final = 0.8
"""Vendi/n of the last generations, as a share of the first ones, below which designs collapse."""
WINDOW: Final = 5
"""Generations that are averaged, and that regret has to stay negative in a row."""


def find_alarms(
    generations: Sequence[GenerationFacts], steps: Sequence[StepFacts], lag_limits: dict[str, int] | None = None
) -> list[str]:
    """The alarms of a run so far, none where all is well. `lag_limits`: most versions a sample may be old, by role."""
    found = [
        _staleness(steps, lag_limits or {}),
        _effective_samples(steps),
        _collapse(generations),
        _negative_regret(generations),
    ]
    return [alarm for alarm in found if alarm]


def _staleness(steps: Sequence[StepFacts], limits: dict[str, int]) -> str:
    over = [
        f"step {step.step}: {role} {found.lag} > {limits[role]}"
        for step in steps
        for role, found in step.roles.items()
        if role in limits and found.samples and found.lag > limits[role]
    ]
    return f"staleness: samples older than their role's bound were trained ({'; '.join(over[:3])})" if over else ""


def _effective_samples(steps: Sequence[StepFacts]) -> str:
    low = [(found.ess, role, step.step) for step in steps for role, found in step.roles.items() if found.samples]
    low = [one for one in low if one[0] < ESS_FLOOR]
    if not low:
        return ""
    ess, role, step_number = min(low)
    return (
        f"effective sample size: below {ESS_FLOOR:g} in {len({one[2] for one in low})} of {len(steps)} steps, lowest {ess:.2f} "
        f"({role}, step {step_number}): sampler and trainer have drifted apart"
    )


def _collapse(generations: Sequence[GenerationFacts]) -> str:
    played = [one for one in generations if one.valid > 1]
    if len(played) < 2 * WINDOW:
        return ""
    parts = (played[:WINDOW], played[-WINDOW:])
    numbers = [sum(one.valid for one in part) for part in parts]
    # Over more environments Vendi/n falls where designs are alike: the last are held against the first over the smaller number.
    first, last = (
        sum(one.vendi * one.valid for one in part) / min(numbers[0], n) for part, n in zip(parts, numbers, strict=True)
    )
    if last >= DIVERSITY_KEPT * first:
        return ""
    return (
        f"diversity: Vendi/n fell from {first:.2f} to {last:.2f} (first and last {WINDOW} generations): designs repeat each other"
    )


def _negative_regret(generations: Sequence[GenerationFacts]) -> str:
    last = [one for one in generations if one.valid][-WINDOW:]
    if len(last) < WINDOW or any(one.regret + one.regret_se >= 0 for one in last):
        return ""
    mean = sum(one.regret for one in last) / WINDOW
    return f"regret: negative in each of the last {WINDOW} generations (mean {mean:+.2f}): hints mislead"
