"""The frontier by many plays: which designs count, which generations a policy plays, and whether a rise is told from none."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from infra.ablation.frontier import COUNT, PLAYS, FrontierPoint, count_wins, generations_of, rise


def a_point(step: int, wins: Sequence[int]) -> FrontierPoint:
    return FrontierPoint(step=step, generations=[step], plays=PLAYS, wins=list(wins))


def test_a_design_is_at_the_frontier_when_four_to_six_of_ten_plays_are_won() -> None:
    point = a_point(0, [0, 12, 13, 16, 19, 20, 32])
    assert point.at_frontier == [False, False, True, True, True, False, False]
    assert point.share == pytest.approx(3 / 7)
    assert point.win_rate == pytest.approx(112 / (7 * PLAYS))
    assert (a_point(0, []).share, a_point(0, []).win_rate) == (0.0, 0.0)
    ten = msgspec.structs.replace(point, plays=10, wins=[3, 4, 6, 7])
    assert ten.at_frontier == [False, True, True, False]  # both ends belong to it


def test_wins_are_counted_by_design_whatever_the_number_of_seeds() -> None:
    plays = bytes([1, 0, 0, 1, 1, 0, 1, 0, 0])  # three designs, three seeds
    assert count_wins(plays, 3, plays=3) == [3, 1, 0]
    with pytest.raises(ValueError, match="9 plays, and 3 designs have 32 each"):
        count_wins(plays, 3)


@pytest.mark.parametrize(
    ("step", "last", "due"),
    [
        (0, 119, [0, 1, 2, 3]),
        (20, 119, [19, 20, 21, 22]),
        (121, 119, [116, 117, 118, 119]),
        (2, 1, [0, 1]),
    ],
)
def test_a_policy_plays_the_designs_of_its_time(step: int, last: int, due: list[int]) -> None:
    assert generations_of(step, last) == due
    assert len(due) <= COUNT


STEPS = range(0, 121, 20)


def drawn(rng: random.Random, climb: float, shock: float, designs: int = 100) -> list[FrontierPoint]:
    """A run whose share at the frontier climbs from .2, with a shock of its own at each step."""
    shares = {step: min(1.0, max(0.0, 0.2 + climb * step / 120 + rng.gauss(0, shock))) for step in STEPS}
    return [a_point(step, [16 if rng.random() < share else 2 for _ in range(designs)]) for step, share in shares.items()]


def test_the_rise_is_that_of_a_straight_line() -> None:
    near = [a_point(step, [16] * count + [2] * (100 - count)) for step, count in ((0, 10), (50, 21), (100, 30))]
    found = rise([near, near])
    assert found is not None
    assert found.mean == pytest.approx(0.20)
    assert found.seeds == 2
    assert 0.15 < found.low < 0.20 < found.high < 0.25
    falling = [msgspec.structs.replace(point, step=100 - point.step) for point in near]
    down = rise([falling])
    assert down is not None
    assert down.mean == pytest.approx(-0.20)


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize(("climb", "between", "shock"), [(0.0, 0.0, 0.0), (0.15, 0.0, 0.08), (0.15, 0.1, 0.03)])
def test_its_interval_holds_the_truth_as_often_as_it_says(seeds: int, climb: float, between: float, shock: float) -> None:
    rng, held = random.Random(f"{seeds}/{climb}/{shock}"), 0
    spread = between if seeds >= 3 else 0.0  # of fewer seeds nothing is said about others
    for _ in range(300):
        found = rise([drawn(rng, climb + rng.gauss(0, spread), shock) for _ in range(seeds)])
        assert found is not None
        held += found.low <= climb <= found.high
    assert 0.91 <= held / 300 <= 0.985


def test_without_steps_or_scatter_no_rise_is_told() -> None:
    assert rise([]) is None
    assert rise([[a_point(0, [16, 2, 3, 4])]]) is None
    assert rise([[a_point(step, [16, 2]) for step in STEPS], [a_point(0, [16, 2, 3])]]) is None
    assert rise([[a_point(step, [1] * 40) for step in STEPS]]) is None  # nothing scatters: no interval out of nothing
