"""The designer's reward: difficulty anchor, regret with its error, and the selectable signals.

In: returns of both arms. Out: plain numbers. Called by streams/score (regret) and streams/batch (rewards). Pure.
Source: the paper's summary (arXiv 2608.19197) for anchor, regret and their weights; the lower bound is ours: published credit
pays .36 for pure noise at p = .5 with 8 plays an arm, the bound at most .20.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Signal = Literal["regret+anchor", "regret", "variance", "learning-potential", "solve-rate"]
Bound = Literal["mean", "lower"]

BAND_LOW, BAND_HIGH, BAND_WIDTH = 0.4, 0.6, 0.25
REGRET_UNIT = 0.15
ANCHOR_WEIGHT, REGRET_WEIGHT = 0.6, 0.4
ERRORS_BELOW = 0.6  # standard errors that the lower bound takes off
FEWEST_PAIRS = 2  # a spread needs two
FAST_DECAY, SLOW_DECAY = 0.85, 0.98


@dataclass(frozen=True)
class Regret:
    """Mean gain of the hint, its standard error, and the seeds (unpaired: plays of the smaller arm) behind it."""

    mean: float = 0.0
    error: float = 0.0
    pairs: int = 0


def anchor(w: float) -> float:
    """1 for a mean return in [.4, .6], falling linearly to 0 at .15 and .85."""
    outside = max(BAND_LOW - w, w - BAND_HIGH, 0.0)
    return max(0.0, 1.0 - outside / BAND_WIDTH)


def regret_norm(regret: float) -> float:
    """clip(regret / .15, 0, 1): the published credit."""
    return min(1.0, max(0.0, regret / REGRET_UNIT))


def credit(regret: Regret, bound: Bound) -> float:
    """The regret term in [0, 1]: by the mean (published), or by mean - .6 SE (mended), 0 below two pairs."""
    if bound == "mean":
        return regret_norm(regret.mean)
    return regret_norm(lower_bound(regret))


def lower_bound(regret: Regret) -> float:
    """Mean - .6 SE; 0 at most where there are fewer than two pairs, whose error is unknown."""
    if regret.pairs < FEWEST_PAIRS:
        return min(0.0, regret.mean)
    return regret.mean - ERRORS_BELOW * regret.error


def hint_helps(earlier: Regret, bound: Bound) -> bool:
    """Whether a hint also helps a frozen earlier policy: designer and agent are one model and could agree on a code that only
    they read; a policy from before the agreement can't. By the same bound as the credit itself."""
    return earlier.pairs >= FEWEST_PAIRS and (earlier.mean if bound == "mean" else lower_bound(earlier)) > 0.0


def paired_regret(hinted: Sequence[tuple[int, float]], plain: Sequence[tuple[int, float]]) -> Regret:
    """Regret over seeds that both arms played: (seed, return) each, plays of one seed averaged first.

    Mean of the differences; SE = sd(differences, n - 1) / sqrt(n), 0 where n < 2.
    """
    by_hint, by_plain = _by_seed(hinted), _by_seed(plain)
    differences = [by_hint[seed] - by_plain[seed] for seed in sorted(by_hint.keys() & by_plain.keys())]
    if not differences:
        return Regret()
    n = len(differences)
    return Regret(mean(differences), math.sqrt(_sample_variance(differences) / n), n)


def unpaired_regret(hinted: Sequence[float], plain: Sequence[float]) -> Regret:
    """Regret of two arms on seeds of their own (published); Welch's standard error."""
    if not hinted or not plain:
        return Regret()
    error = math.sqrt(_sample_variance(hinted) / len(hinted) + _sample_variance(plain) / len(plain))
    return Regret(mean(hinted) - mean(plain), error, min(len(hinted), len(plain)))


def designer_reward(
    signal: Signal, w: float, regret: Regret, bound: Bound, *, variance: float = 0.0, potential: float = 0.0, clip_w: bool = True
) -> float:
    """A valid design's reward under the recipe's signal.

    `w`: mean return of the plain plays over the window (clipped to [0, 1] unless published); `variance`: of these returns,
    population; `potential`: see `learning_potential`. "solve-rate" is the anchor alone; "regret" is regret itself, unclipped.
    """
    rate = min(1.0, max(0.0, w)) if clip_w else w
    match signal:
        case "regret+anchor":
            return ANCHOR_WEIGHT * anchor(rate) + REGRET_WEIGHT * credit(regret, bound)
        case "regret":
            return regret.mean if bound == "mean" else lower_bound(regret)
        case "variance":
            return ANCHOR_WEIGHT * variance_term(variance) + REGRET_WEIGHT * credit(regret, bound)
        case "learning-potential":
            return potential
        case "solve-rate":
            return anchor(rate)


def variance_term(variance: float) -> float:
    """exp(-(var - .25)^2 / .02): 1 where half of the plays win."""
    return math.exp(-((variance - 0.25) ** 2) / 0.02)


@dataclass(frozen=True)
class Averages:
    """A fast and a slow moving average of one skill's mean return over closed generations."""

    fast: float
    slow: float

    def after(self, value: float) -> Averages:
        """The averages with one more value in them."""
        return Averages(
            FAST_DECAY * self.fast + (1 - FAST_DECAY) * value,
            SLOW_DECAY * self.slow + (1 - SLOW_DECAY) * value,
        )


def learning_potential(averages: Averages | None, w: float) -> float:
    """|fast - slow| of the skill once the design's own mean return is in it; 0 for a skill that never closed before.

    Over the skill's mean alone every design of a skill would earn the same, and centring by skill would leave no signal.
    """
    if averages is None:
        return 0.0
    after = averages.after(w)
    return abs(after.fast - after.slow)


def fold_averages(known: Mapping[str, Averages], returns: Sequence[tuple[str, float]]) -> dict[str, Averages]:
    """The averages after one closed generation, from its (skill, mean return) pairs, one a valid design."""
    by_skill: dict[str, list[float]] = defaultdict(list)
    for skill, value in returns:
        by_skill[skill].append(value)
    folded = dict(known)
    for skill, values in by_skill.items():
        value = mean(values)
        folded[skill] = folded[skill].after(value) if skill in folded else Averages(value, value)
    return folded


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, 0 for none; math.fsum, so that no order of arrival shows in the last bit."""
    return math.fsum(values) / len(values) if values else 0.0


def population_variance(values: Sequence[float]) -> float:
    """Mean squared distance from the mean, 0 for none."""
    centre = mean(values)
    return mean([(value - centre) ** 2 for value in values])


def _sample_variance(values: Sequence[float]) -> float:
    n = len(values)
    return population_variance(values) * n / (n - 1) if n > 1 else 0.0


def _by_seed(plays: Sequence[tuple[int, float]]) -> dict[int, float]:
    grouped: dict[int, list[float]] = defaultdict(list)
    for seed, value in plays:
        grouped[seed].append(value)
    return {seed: mean(values) for seed, values in grouped.items()}
