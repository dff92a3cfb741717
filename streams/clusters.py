"""Clusters of near-duplicates: an environment that repeats none, whoever repeats it, and whoever repeats one of those.

In: the slots of closed generations. Out: each environment's cluster, named by its first environment. Called by
streams/collapse.py. Pure. A cluster is what the slots' closing saw, link by link: its ends may be less alike than the bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from schemas.design import Member, SlotsClosed


class Clusters:
    """The clusters of generations up to `newest`."""

    def __init__(self, slots: Mapping[int, SlotsClosed], newest: int) -> None:
        self._slots = {generation: slots[generation] for generation in sorted(slots) if generation <= newest}
        self.members: dict[str, Member] = {one.env_id: one for each in self._slots.values() for one in each.members}
        """Every environment, the oldest first."""
        self._first: dict[str, str] = {}
        for env_id, member in self.members.items():  # whom it repeats stands before it
            self._first[env_id] = self._first.get(member.repeats, env_id)

    def first_of(self, env_id: str) -> str:
        """The first environment of a member's cluster."""
        return self._first[env_id]

    def largest(self, generations: list[int], most: int) -> dict[tuple[str, str], int]:
        """(Skill, first environment): the skill's designs of these generations in the cluster, dropped near-duplicates too. Of
        each skill the `most` clusters that have most, ties to the lower id; one that nothing repeats is none."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for env_id in self._designs(generations):
            counts[self.members[env_id].skill][self._first[env_id]] += 1
        found: dict[tuple[str, str], int] = {}
        for skill in sorted(counts):
            ranked = sorted(counts[skill].items(), key=lambda one: (-one[1], one[0]))
            found |= {(skill, first): count for first, count in ranked[:most] if count > 1}
        return found

    def _designs(self, generations: list[int]) -> Iterator[str]:
        """Each member, and for a dropped near-duplicate the environment that it repeats."""
        for generation in generations:
            if generation in self._slots:
                yield from (one.env_id for one in self._slots[generation].members)
                yield from (one.repeats for one in self._slots[generation].duplicates if one.repeats in self.members)
