"""How many of a run's designs lie at the frontier, measured by many plays of the policy of their time, and whether that rises.

In: for some steps of a run, how often the policy of that step won each design of the generations around it. Out: the share whose
win rate lies in [.4, .6], and how far it rises over the run, with a 95 % interval. Called by `spade ablate`, the table and the
picture. Pure. The run's own 8 plays a design can't tell: of designs that are won half the time, 8 plays put a quarter into
[.4, .6], 32 plays three quarters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from infra.ablation.difference import Crossed, widen

LOW, HIGH = 0.4, 0.6
PLAYS = 32  # a design
BEFORE, COUNT = 1, 4
"""A policy plays the designs of so many generations, which begin so many before its step."""


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of a run on the designs of its time."""

    step: int
    generations: list[int]
    plays: int  # of each design, without hint, on as many seeds
    wins: list[int]  # of each design

    @property
    def at_frontier(self) -> list[bool]:
        """Of each design."""
        return [LOW * self.plays <= won <= HIGH * self.plays for won in self.wins]

    @property
    def share(self) -> float:
        """Of the designs; 0 where there is none."""
        return sum(self.at_frontier) / len(self.wins) if self.wins else 0.0

    @property
    def win_rate(self) -> float:
        """Over all designs and plays; 0 where there is none."""
        return sum(self.wins) / (len(self.wins) * self.plays) if self.wins else 0.0


def generations_of(step: int, last: int) -> list[int]:
    """The generations whose designs the policy after `step` steps plays, of a run whose generations are 0 to `last`."""
    start = max(0, min(step - BEFORE, last + 1 - COUNT))
    return list(range(start, min(last + 1, start + COUNT)))


def count_wins(results: bytes, designs: int) -> list[int]:
    """Wins of each design, from one byte a play in a suite's order: all designs on their first seed, then on their second, ..."""
    return [sum(results[place::designs]) for place in range(designs)]


def rise(by_seed: Sequence[Sequence[FrontierPoint]]) -> Crossed | None:
    """How far the share at the frontier rises over the run: the slope of a straight line through the designs, times the steps
    between the first and the last point, mean over seeds. Its interval holds the scatter of designs (heteroskedasticity-robust,
    HC1) and that of seeds. None where a seed has fewer than two steps."""
    slopes = [_slope(points) for points in by_seed]
    if not slopes or any(one is None for one in slopes):
        return None
    found = [one for one in slopes if one is not None]
    mean = math.fsum(up for up, _, _ in found) / len(found)
    designs = sum(count for _, _, count in found)
    parts = [(math.fsum(variance for _, variance, _ in found) / len(found) ** 2, designs - 2 * len(found))]
    if len(found) > 1:
        spread = math.fsum((up - mean) ** 2 for up, _, _ in found) / (len(found) - 1)
        parts.append((spread / len(found), len(found) - 1))
    reach = widen(parts)
    return Crossed(mean, mean - reach, mean + reach, len(found), designs)


def _slope(points: Sequence[FrontierPoint]) -> tuple[float, float, int] | None:
    """Rise over the whole run, its variance, and the number of designs."""
    pairs = [(float(point.step), float(one)) for point in points for one in point.at_frontier]
    steps = {step for step, _ in pairs}
    if len(steps) < 2 or len(pairs) < 3:
        return None
    middle = math.fsum(step for step, _ in pairs) / len(pairs)
    level = math.fsum(value for _, value in pairs) / len(pairs)
    square = math.fsum((step - middle) ** 2 for step, _ in pairs)
    slope = math.fsum((step - middle) * (value - level) for step, value in pairs) / square
    left = math.fsum(((step - middle) * (value - level - slope * (step - middle))) ** 2 for step, value in pairs)
    variance = left / square**2 * len(pairs) / (len(pairs) - 2)
    length = max(steps) - min(steps)
    return slope * length, variance * length**2, len(pairs)
