"""Which environments a step plays and trains, by the evictions that earlier scores hold.

In: env-scored records. Out: member lists. Called by streams/rollout and streams/batch, which must agree: what is requested is
what is waited for. Pure. Plays of step t are not requested for environments evicted by scores of steps < t - lag; batch s
leaves out environments evicted by scores of steps <= s.
"""

from __future__ import annotations

from schemas.design import Member, SlotsClosed
from schemas.score import EnvScored
from streams.schedule import Schedule


class Evictions:
    """Scored (environment, step) pairs of open generations, and the first step that evicted each environment."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._scored: set[tuple[str, int]] = set()
        self._evicted_at: dict[str, int] = {}

    def note(self, scored: EnvScored) -> None:
        """Takes a score, in any order, any number of times."""
        self._scored.add((scored.env_id, scored.step))
        if scored.evicted:
            self._evicted_at[scored.env_id] = min(scored.step, self._evicted_at.get(scored.env_id, scored.step))

    def probed(self, slots: SlotsClosed) -> bool:
        """Whether the scores of all probe plays of the generation are in."""
        first = self._schedule.steps_of(slots.generation).start
        return all((probe.member.env_id, first) in self._scored for probe in slots.probes)

    def forget(self, slots: SlotsClosed) -> None:
        """Drops what is known of a generation that has closed for good."""
        for member in (*slots.members, *(probe.member for probe in slots.probes)):
            self._evicted_at.pop(member.env_id, None)
            for step in self._schedule.steps_of(slots.generation):
                self._scored.discard((member.env_id, step))

    def requested(self, slots: SlotsClosed, step: int) -> list[Member]:
        """The members whose plays of `step` are requested; right once `known_for_request` is true."""
        limit = self._schedule.eviction_limit(step)
        return [member for member in slots.members if self._evicted_at.get(member.env_id, limit) >= limit]

    def known_for_request(self, slots: SlotsClosed, step: int) -> bool:
        """Whether every score that decides about requests of `step` is in."""
        first = self._schedule.steps_of(slots.generation).start
        # Ascending: who was requested for a step is settled by the steps before it.
        return all(self._all_scored(slots, earlier) for earlier in range(first, self._schedule.eviction_limit(step)))

    def complete(self, slots: SlotsClosed, step: int) -> bool:
        """Whether the scores of all plays requested for `step` are in."""
        return self.known_for_request(slots, step) and self._all_scored(slots, step)

    def _all_scored(self, slots: SlotsClosed, step: int) -> bool:
        return all((member.env_id, step) in self._scored for member in self.requested(slots, step))

    def trained(self, slots: SlotsClosed, step: int) -> list[Member]:
        """The members whose plays batch `step` trains; right once the steps up to it are complete."""
        return [member for member in self.requested(slots, step) if self._evicted_at.get(member.env_id, step + 1) > step]
