"""The mean difference of two arms with an interval over seeds and environments at once.

In: for each seed one value an instance (-1, 0, 1 for a difference of wins; 0, 1 for wins), in the suite's order, and the
environment of each instance. Out: mean and 95 % interval. Called by the table.

Why not one of the two usual ones: a bootstrap over instances says nothing about another training seed, and Student's t over seeds
nothing about other instances, since all seeds play the same. Both vary at once (crossed random effects), so the two variances of
the mean are added: that of the seeds' means, s^2 / S, and that of the environments' (the sandwich of cluster sums of the values
averaged over seeds), each times the square of Student's quantile at its own degrees of freedom: two seeds tell little of how much
seeds differ, and one quantile for the sum (Satterthwaite's) covered .88 instead of .95 where they differ most. What belongs to
neither part alone is in both, so the interval is too wide rather than too narrow (.96 to .99 in simulations with two seeds). One
seed gives the second part alone, and says so by `seeds`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.975


@dataclass(frozen=True)
class Crossed:
    """A mean with its 95 % interval, and what stands behind it."""

    mean: float
    low: float
    high: float
    seeds: int
    instances: int

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


def crossed_interval(by_seed: Sequence[Sequence[float]], clusters: Sequence[str]) -> Crossed:
    """The interval of the mean over all values. Raises ValueError where there is none, or lengths differ."""
    if not by_seed or not clusters or any(len(values) != len(clusters) for values in by_seed):
        raise ValueError(f"{[len(values) for values in by_seed]} values of seeds and {len(clusters)} clusters don't fit")
    from scipy.special import stdtrit

    seeds, count = len(by_seed), len(clusters)
    means = [math.fsum(values) / count for values in by_seed]
    mean = math.fsum(means) / seeds
    deviations: dict[str, float] = defaultdict(float)
    for place, name in enumerate(clusters):
        deviations[name] += math.fsum(values[place] for values in by_seed) / seeds - mean
    parts = [_part(list(deviations.values()), count)]
    if seeds > 1:
        spread = math.fsum((value - mean) ** 2 for value in means) / (seeds - 1)
        parts.append((spread / seeds, seeds - 1))
    if len(deviations) < 2:
        return Crossed(mean, -1.0, 1.0, seeds, count)
    reach = math.sqrt(math.fsum(part * float(stdtrit(degrees, LEVEL)) ** 2 for part, degrees in parts))
    return Crossed(mean, mean - reach, mean + reach, seeds, count)


def _part(sums: Sequence[float], count: int) -> tuple[float, int]:
    """Variance of the mean by cluster sums of deviations, and its degrees of freedom."""
    groups = len(sums)
    correction = groups / (groups - 1) if groups > 1 else 1.0
    return math.fsum(value * value for value in sums) * correction / count**2, max(1, groups - 1)
