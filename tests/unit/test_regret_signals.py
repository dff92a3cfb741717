"""Anchor, regret, credit and the selectable signals, by the vectors of the method."""

from __future__ import annotations

import math
import random

import pytest

from streams.regret import (
    Averages,
    Regret,
    anchor,
    credit,
    designer_reward,
    fold_averages,
    learning_potential,
    lower_bound,
    paired_regret,
    regret_norm,
    unpaired_regret,
    variance_term,
)


@pytest.mark.parametrize(
    ("w", "expected"),
    [(0.2, 0.2), (0.275, 0.5), (0.7, 0.6), (0.725, 0.5), (0.4, 1), (0.5, 1), (0.6, 1), (0.15, 0), (0.85, 0), (-1, 0), (1, 0)],
)
def test_anchor_vectors(w: float, expected: float) -> None:
    assert anchor(w) == pytest.approx(expected)


@pytest.mark.parametrize(("regret", "expected"), [(0.15, 1), (0.075, 0.5), (0, 0), (-1, 0), (1, 1)])
def test_regret_is_scaled_and_clipped(regret: float, expected: float) -> None:
    assert regret_norm(regret) == pytest.approx(expected)


@pytest.mark.parametrize(("w", "regret", "expected"), [(0.46875, 0.375, 1), (0, 0.0625, 1 / 6), (1, 0, 0)])
def test_designer_reward_vectors_under_the_published_rule(w: float, regret: float, expected: float) -> None:
    assert designer_reward("regret+anchor", w, Regret(regret, 0.0, 8), "mean", clip_w=False) == pytest.approx(expected)


def test_paired_regret_averages_plays_of_a_seed_before_it_takes_the_error() -> None:
    hinted = [(1, 1.0), (1, 0.0), (2, 1.0), (3, 1.0)]
    plain = [(1, 0.0), (2, 0.0), (2, 1.0), (3, 0.0), (9, 1.0)]
    found = paired_regret(hinted, plain)  # differences .5, .5, 1
    assert found.pairs == 3
    assert found.mean == pytest.approx(2 / 3)
    assert found.error == pytest.approx(math.sqrt(1 / 12) / math.sqrt(3))


def test_one_pair_has_no_error_and_earns_nothing_by_its_lower_bound() -> None:
    found = paired_regret([(1, 1.0)], [(1, 0.0)])
    assert found == Regret(1.0, 0.0, 1)
    assert credit(found, "lower") == 0.0
    assert credit(found, "mean") == 1.0
    assert lower_bound(Regret(-0.5, 0.0, 1)) == -0.5


def test_no_plays_give_zero_regret() -> None:
    assert paired_regret([], [(1, 1.0)]) == Regret()
    assert unpaired_regret([], [1.0]) == Regret()


def test_unpaired_regret_has_welchs_error() -> None:
    found = unpaired_regret([1.0, 0.0, 1.0, 1.0], [0.0, 1.0])
    assert found.mean == pytest.approx(0.25)
    assert found.error == pytest.approx(math.sqrt(0.25 / 4 + 0.5 / 2))
    assert found.pairs == 2


def test_zero_true_regret_earns_at_most_a_fifth_mended_and_over_a_third_published() -> None:
    """8 plays an arm at p = .5 and no true gain: noise alone must not pay."""
    source = random.Random(1)
    rounds, mended, published = 20_000, 0.0, 0.0
    for _ in range(rounds):
        arms = [[(seed, float(source.random() < 0.5)) for seed in range(8)] for _ in range(2)]
        found = paired_regret(*arms)
        mended += credit(found, "lower") / rounds
        published += credit(found, "mean") / rounds
    assert mended <= 0.20
    assert 0.34 < published < 0.38


def test_mended_clips_the_mean_return_and_published_does_not() -> None:
    low = Regret(0.0, 0.0, 8)
    assert designer_reward("solve-rate", -0.3, low, "lower") == 0.0
    assert designer_reward("solve-rate", 1.2, low, "lower") == designer_reward("solve-rate", 1.0, low, "lower")


def test_each_signal_is_its_own() -> None:
    found = Regret(0.12, 0.05, 8)
    rewards = {
        "regret+anchor": 0.6 * 0.5 + 0.4 * 0.6,
        "regret": 0.09,
        "variance": 0.6 * 1.0 + 0.4 * 0.6,
        "learning-potential": 0.07,
        "solve-rate": 0.5,
    }
    for signal, expected in rewards.items():
        reward = designer_reward(signal, 0.725, found, "lower", variance=0.25, potential=0.07)  # type: ignore[arg-type]
        assert reward == pytest.approx(expected), signal
    assert designer_reward("regret", 0.725, found, "mean") == pytest.approx(0.12)


def test_variance_term_is_one_for_even_odds_and_small_for_certainty() -> None:
    assert variance_term(0.25) == 1.0
    assert variance_term(0.0) == pytest.approx(math.exp(-(0.25**2) / 0.02))


def test_averages_start_at_the_first_mean_and_decay_apart() -> None:
    known = fold_averages({}, [("logic", 0.2), ("logic", 0.4), ("maths", 1.0)])
    assert known["logic"].fast == pytest.approx(0.3)
    known = fold_averages(known, [("logic", 0.8)])
    assert known["logic"].fast == pytest.approx(0.85 * 0.3 + 0.15 * 0.8)
    assert known["logic"].slow == pytest.approx(0.98 * 0.3 + 0.02 * 0.8)
    assert known["maths"] == Averages(1.0, 1.0)


def test_learning_potential_is_the_gap_after_the_designs_own_return() -> None:
    assert learning_potential(None, 0.9) == 0.0
    assert learning_potential(Averages(0.5, 0.5), 0.5) == 0.0
    assert learning_potential(Averages(0.5, 0.5), 0.9) == pytest.approx((0.15 - 0.02) * 0.4)
