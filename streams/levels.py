"""Which environment of a procedural pool a slot gets: families of programs by level, the level sliding with the agent.

In: the pool's documents, each with its family and level; closed generations. Out: a document a slot. Called by streams/slots.py
and streams/design.py. Pure: a function of the log up to the generation that memory ends at, so one plan whatever the timing.

`rule = "accuracy"` is RLVE's: a family begins at its lowest level l; once at least `tries` plain plays of environments of level l
are closed, it rises if `rise_at` of them were won, and the count begins anew either way; levels are drawn evenly from l - `reach`
to l. `rule = "memory"` is that of the warm start's author: near the best remembered level of a family, above the easy ones, below
the hard ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from schemas.design import Document, MemoryLine
from schemas.score import GenerationClosed
from schemas.settings import Recipe

START = 3  # levels that an author without memory of the family draws from


@dataclass
class _Climb:
    """A family's level while closings are folded."""

    level: int
    tries: float = 0.0
    wins: float = 0.0


class Ladder:
    """The families of a pool, and what is known of closed generations."""

    def __init__(self, recipe: Recipe, documents: Sequence[Document]) -> None:
        self._recipe = recipe
        self._by_id = {one.document_id: one for one in documents}
        self._at: dict[tuple[str, int], list[Document]] = defaultdict(list)
        self._families: dict[str, list[str]] = defaultdict(list)  # skill -> families, "" -> all
        for one in documents:
            self._at[one.family, one.level].append(one)
            for skill in {one.skill, ""}:
                if one.family not in self._families[skill]:
                    self._families[skill].append(one.family)
        self._levels = {
            family: sorted(level for name, level in self._at if name == family) for family in self._families.get("", ())
        }
        self._closed: dict[int, GenerationClosed] = {}
        self._reached: dict[int, dict[str, int]] = {}

    def note(self, record: GenerationClosed) -> None:
        """Keeps a closing; the first of a generation counts. Closings come in the order of their generations."""
        self._closed.setdefault(record.generation, record)

    def draw(self, generation: int, block: int, skill: str, newest: int | None, lines: Sequence[MemoryLine]) -> Document:
        """The block's environment; `newest`: the generation that memory ends at, closed by now (None: there is none)."""
        rng = Random(f"{self._recipe.seed}/levels/{generation}/{block}")
        family = rng.choice(self._families.get(skill) or self._families[""])
        levels = self._levels[family]
        if self._recipe.levels.rule == "accuracy":
            top = self.reached(newest)[family]
            level = rng.choice([one for one in levels if top - self._recipe.levels.reach <= one <= top])
        else:
            wanted = author_level(rng, levels, self._remembered(family, lines))
            level = min(levels, key=lambda one: (abs(one - wanted), one))
        return rng.choice(self._at[family, level])

    def reached(self, newest: int | None) -> dict[str, int]:
        """Each family's level by the closings of generations up to `newest`, folded in their order."""
        if newest is not None and newest in self._reached:
            return self._reached[newest]
        climbs = {family: _Climb(levels[0]) for family, levels in self._levels.items()}
        for generation in range(-1 if newest is None else newest + 1):
            if generation in self._closed:
                self._fold(self._closed[generation], climbs)
        found = {family: climb.level for family, climb in climbs.items()}
        if newest is not None and newest in self._closed:
            self._reached[newest] = found
        return found

    def _fold(self, closing: GenerationClosed, climbs: Mapping[str, _Climb]) -> None:
        plays = self._recipe.rollout.plain_plays * self._recipe.schedule.interval
        for design in closing.designs:
            document = self._by_id.get(design.document_id)
            if document is not None and design.valid and not design.evicted and document.level == climbs[document.family].level:
                climbs[document.family].tries += plays
                climbs[document.family].wins += plays * design.win_rate
        for family, climb in climbs.items():
            self._rise(family, climb)

    def _rise(self, family: str, climb: _Climb) -> None:
        if climb.tries < self._recipe.levels.tries:
            return
        above = [level for level in self._levels[family] if level > climb.level]
        if above and climb.wins >= self._recipe.levels.rise_at * climb.tries:
            climb.level = above[0]
        climb.tries = climb.wins = 0.0

    def _remembered(self, family: str, lines: Sequence[MemoryLine]) -> dict[str, list[int]]:
        """Kind of memory line -> levels of the family's environments that the lines name."""
        named = {line.env_id: line.kind for line in lines}
        found: dict[str, list[int]] = defaultdict(list)
        for record in self._closed.values():
            for design in record.designs:
                document = self._by_id.get(design.document_id)
                if design.env_id in named and document is not None and document.family == family:
                    found[named[design.env_id]].append(document.level)
        return found


def author_level(rng: Random, levels: Sequence[int], known: Mapping[str, Sequence[int]]) -> int:
    """The level that the warm start's author writes after these memory lines; without any, one of the easiest."""
    easy, hard, best = (sorted(known.get(kind, ())) for kind in ("easy", "hard", "best"))
    low = easy[-1] + 1 if easy else levels[0]
    high = hard[0] - 1 if hard else levels[-1]
    if best:
        return min(max(rng.choice(best) + rng.choice((-1, 0, 0, 1)), low), max(high, levels[0]))
    if easy and hard:
        return rng.randint(low, high) if low <= high else (low + high) // 2
    if easy:
        return low + rng.choice((0, 0, 1, 1, 2))
    if hard:
        return high - rng.choice((0, 0, 1, 1, 2))
    return rng.choice(levels[:START])
