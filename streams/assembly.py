"""How the free schedule fills its batches, as a function of the log order of scores alone.

In: slots-closed and env-scored, each in log order; between the two topics any interleaving gives the same. Out: filled batches,
and groups that are too old. Called by streams/freebatch and streams/freerollout, which must agree: what is dropped is asked for
again. Pure.

A group is the plays of one environment at one step. Batch b takes as many groups as step b plays environments, the first in log
order that are not taken: of whatever step, so a straggler holds nobody up and moves to a later batch. A group that batch b would
take, and whose oldest sample would be more than the bound behind b, is dropped instead; its plays are asked for again (`repeat`
+ 1) once version b - lag is published, so it can't be too old for b a second time. Every group is taken once: there are as many
as the batches have room for, and those of steps up to b suffice for b. From the score that evicts an environment on, its groups
are taken without their samples.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from schemas.design import SlotsClosed
from schemas.rollout import HINTED, PLAIN
from schemas.score import EnvScored
from schemas.settings import Recipe
from streams.schedule import Schedule

GroupKey = tuple[str, int, int]  # env_id, step, repeat


@dataclass(frozen=True)
class Group:
    """A scored group that waits to be taken."""

    scored: EnvScored
    samples: int  # 0: nothing of it is trained
    oldest: int  # version of its oldest sample; -1: no sample has an age
    evicted: bool  # this score, or an earlier one, evicted its environment


@dataclass
class Filled:
    """A batch that has its groups, in log order; `evicted`: environments of groups without samples."""

    step: int
    groups: list[Group] = field(default_factory=list)
    stale: int = 0  # samples that were dropped while it was filled
    evicted: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Stale:
    """A group that was too old for `batch`: its plays are asked for once more."""

    scored: EnvScored
    batch: int


def trained_arms(recipe: Recipe) -> tuple[str, ...]:
    """The arms whose plays are trained."""
    return (PLAIN, HINTED) if recipe.rollout.train_hint_arm else (PLAIN,)


class Assembly:
    """Groups of one run that are not taken, and the batch that is being filled."""

    def __init__(self, recipe: Recipe) -> None:
        self._schedule = Schedule(recipe.schedule)
        self._bound = recipe.schedule.lag_limit("agent")
        self._arms = trained_arms(recipe)
        self._members: dict[int, frozenset[str]] = {}  # generation -> its environments
        self._seen: set[GroupKey] = set()
        self._evicted: set[str] = set()
        self._waiting: deque[Group] = deque()
        self._filling = Filled(0)
        self._taken: Counter[int] = Counter()  # generation -> groups
        self._last_use: dict[int, int] = {}  # generation -> the last batch that took a group of it

    def note_slots(self, slots: SlotsClosed) -> None:
        """Takes a generation's members; the first word counts."""
        self._members.setdefault(slots.generation, frozenset(member.env_id for member in slots.members))

    def note_scored(self, scored: EnvScored) -> None:
        """Takes a score, in log order; copies are passed over."""
        key = (scored.env_id, scored.step, scored.repeat)
        if key in self._seen:
            return
        self._seen.add(key)
        if scored.evicted:
            self._evicted.add(scored.env_id)
        plays = [play for arm in scored.arms if arm.arm in self._arms for play in arm.plays]
        evicted = scored.env_id in self._evicted  # by now: later evictions leave it as it is
        samples = 0 if evicted else len(plays)
        ages = [play.versions.oldest for play in plays if play.versions.oldest >= 0]
        self._waiting.append(Group(scored, samples, min(ages) if ages and samples else -1, evicted))

    def advance(self) -> tuple[list[Filled], list[Stale]]:
        """Every batch that is full now, and every group that was dropped since the last call; each told once."""
        filled: list[Filled] = []
        stale: list[Stale] = []
        while (room := self._room(self._filling.step)) is not None:
            while len(self._filling.groups) < room and self._is_known():
                self._take(self._waiting.popleft(), stale)
            if len(self._filling.groups) < room:
                break
            filled.append(self._filling)
            self._filling = Filled(self._filling.step + 1)
        return filled, stale

    def is_used_up(self, generation: int) -> int | None:
        """The batch that took the generation's last group (-1 where it has none); None while some are not taken."""
        if generation not in self._members:
            return None
        planned = len(self._members[generation]) * len(self._schedule.steps_of(generation))
        return self._last_use.get(generation, -1) if self._taken[generation] == planned else None

    def _room(self, step: int) -> int | None:
        members = self._members.get(self._schedule.generation_of(step))
        return len(members) if members is not None and step < self._schedule.steps else None

    def _is_known(self) -> bool:
        """Whether a group waits whose generation's members are known; else it is waited for them: the order is the log's."""
        return bool(self._waiting) and self._waiting[0].scored.generation in self._members

    def _take(self, group: Group, stale: list[Stale]) -> None:
        batch, scored = self._filling, group.scored
        if scored.env_id not in self._members[scored.generation]:
            return  # plays beside the batches: of an environment that is no member
        if group.oldest >= 0 and batch.step - group.oldest > self._bound:
            batch.stale += group.samples
            stale.append(Stale(scored, batch.step))
            return
        batch.groups.append(group)
        if group.evicted:
            batch.evicted.add(scored.env_id)
        self._taken[scored.generation] += 1
        self._last_use[scored.generation] = batch.step
