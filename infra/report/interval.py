"""The paired difference of two policies on the same instances, with an interval that respects clusters.

In: a number an instance (1 where won, or its return) in the suite's fixed order, and each instance's environment. Out: the mean
difference and its 95 % interval. Instances of one environment share its text, so they are not independent: the standard error is
that of the mean of cluster sums (the sandwich estimator with G / (G - 1)), not of single instances. Student's quantile at G - 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.975


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float
    clusters: int


def paired_difference(before: Sequence[float], after: Sequence[float], clusters: Sequence[str]) -> Interval:
    """Mean of after - before over instances. All three have one entry an instance; raises ValueError where they differ."""
    if not len(before) == len(after) == len(clusters):
        raise ValueError(f"{len(before)}, {len(after)} results and {len(clusters)} cluster names don't pair")
    from scipy.special import stdtrit

    if not before:
        raise ValueError("no instance to compare")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = sum(differences) / len(differences)
    deviations: dict[str, float] = defaultdict(float)
    for name, difference in zip(clusters, differences, strict=True):
        deviations[name] += difference - mean
    groups = len(deviations)
    if groups < 2:
        return Interval(mean, -1.0, 1.0, groups)
    variance = sum(value * value for value in deviations.values()) * groups / (groups - 1)
    reach = float(stdtrit(groups - 1, LEVEL)) * math.sqrt(variance) / len(differences)
    return Interval(mean, mean - reach, mean + reach, groups)
