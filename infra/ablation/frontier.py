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

from infra.ablation.difference import LEVEL

LOW, HIGH = 0.4, 0.6
PLAYS = 32  # a design
BEFORE, COUNT = 1, 4
"""A policy plays the designs of so many generations, which begin so many before its step; at a run's ends, the first
or the last."""
MANY_SEEDS = 3  # from here on the spread of the seeds is known well enough to go by
NO_SCATTER = 1e-12  # rounding


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


class Rise(msgspec.Struct, frozen=True, kw_only=True):
    """How far the share at the frontier rises from a run's first point to its last."""

    mean: float
    low: float
    high: float
    seeds: int


def generations_of(step: int, last: int) -> list[int]:
    """The generations whose designs the policy after `step` steps plays, of a run whose generations are 0 to `last`."""
    start = max(0, min(step - BEFORE, last + 1 - COUNT))
    return list(range(start, min(last + 1, start + COUNT)))


def count_wins(results: bytes, designs: int, plays: int = PLAYS) -> list[int]:
    """Wins of each design, from one byte a play in a suite's order: all designs on their first seed, then on their second, ...
    Raises ValueError where that is not `plays` of each."""
    if len(results) != designs * plays:
        raise ValueError(f"{len(results)} plays, and {designs} designs have {plays} each")
    return [sum(results[place::designs]) for place in range(designs)]


def rise(by_seed: Sequence[Sequence[FrontierPoint]]) -> Rise | None:
    """The slope of a straight line through the shares, times the steps between first and last point, mean over seeds.

    The interval takes a share as the unit and not a design: designs of one time share their policy and their documents, and a
    fixed pool shows the same ones again. With three seeds or more it is Student's over the seeds' slopes, which hold all of that.
    With fewer it comes from the scatter of the shares about lines of one slope, and says nothing of other seeds. None where too
    few steps are there, or no scatter.
    """
    lines = [[(float(point.step), point.share) for point in points] for points in by_seed]
    if not lines or any(len({step for step, _ in line}) < 3 for line in lines):
        return None
    length = math.fsum(max(step for step, _ in line) - min(step for step, _ in line) for line in lines) / len(lines)
    slopes = [_product(line) / _square(line) for line in lines]
    mean = math.fsum(slopes) / len(slopes)
    if len(lines) >= MANY_SEEDS:
        variance = math.fsum((slope - mean) ** 2 for slope in slopes) / (len(slopes) - 1) / len(slopes)
        degrees = len(slopes) - 1
    else:
        squares = math.fsum(_square(line) for line in lines)
        mean = math.fsum(_product(line) for line in lines) / squares
        degrees = sum(len(line) for line in lines) - len(lines) - 1
        variance = math.fsum(_left_over(line, mean) for line in lines) / degrees / squares
    if variance * length**2 < NO_SCATTER:
        return None
    from scipy.special import stdtrit

    reach = length * math.sqrt(variance) * float(stdtrit(degrees, LEVEL))
    return Rise(mean=length * mean, low=length * mean - reach, high=length * mean + reach, seeds=len(lines))


Line = Sequence[tuple[float, float]]


def _centred(line: Line) -> list[tuple[float, float]]:
    middle, level = (math.fsum(pair[which] for pair in line) / len(line) for which in (0, 1))
    return [(step - middle, share - level) for step, share in line]


def _square(line: Line) -> float:
    return math.fsum(step**2 for step, _ in _centred(line))


def _product(line: Line) -> float:
    return math.fsum(step * share for step, share in _centred(line))


def _left_over(line: Line, slope: float) -> float:
    """Sum of squares about the line of that slope through the middle."""
    return math.fsum((share - slope * step) ** 2 for step, share in _centred(line))
