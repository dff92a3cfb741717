"""Advantages of both roles, always normalised apart.

In: rewards and returns with their groups, in one order. Out: one advantage each, in that order: nothing is trimmed or
duplicated, before or after. Called by streams/batch. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from streams.regret import mean, population_variance

EPSILON = 1e-8
LARGEST_SCALE = 50.0


def designer_scale(n_designer: float, n_agent: float, interval: int) -> float:
    """min(50, n_agent / n_designer * K) over the recipe's planned counts a step; 1 where there is no designer sample."""
    if n_designer <= 0:
        return 1.0
    return min(LARGEST_SCALE, n_agent / n_designer * interval)


def centred(rewards: Sequence[float], groups: Sequence[Hashable], scale: float) -> list[float]:
    """(reward - mean of its group) * scale, without division by a deviation: the designer's, grouped by skill."""
    means = {group: mean(values) for group, values in _grouped(rewards, groups).items()}
    return [(reward - means[group]) * scale for reward, group in zip(rewards, groups, strict=True)]


def z_scores(values: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """(value - mean) / (population deviation + 1e-8) in its group: GRPO's, 0 where a group has one value or no spread."""
    stats = {group: (mean(own), math.sqrt(population_variance(own))) for group, own in _grouped(values, groups).items()}
    return [(value - stats[group][0]) / (stats[group][1] + EPSILON) for value, group in zip(values, groups, strict=True)]


def _grouped(values: Sequence[float], groups: Sequence[Hashable]) -> dict[Hashable, list[float]]:
    grouped: dict[Hashable, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        grouped[group].append(value)
    return grouped
