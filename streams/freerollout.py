"""The rollout stage of the free schedule: plays by the newest policy, and again where a group was too old for its batch.

In: slots-closed (held until all groups of the generation are taken by batches); control: slots-closed, policy-published,
env-scored, run-ending, own rollout-requested. Out: rollout-requested. Called by streams/app.py. Pure.
Dispatch pauses while the trainer is more than `lag` steps behind the step that would be asked for. A worker plays a unit by the
newest policy that is published when it begins it; so two copies of a play may differ, and the first in log order counts.
"""

from __future__ import annotations

from schemas import ids
from schemas.design import Member, SlotsClosed
from schemas.rollout import HINTED, PLAIN, Play, RolloutRequested
from schemas.run import RunEnding
from schemas.score import EnvScored
from schemas.settings import Recipe
from schemas.train import PolicyPublished
from streams.assembly import Assembly, Stale, trained_arms
from streams.rollout import RolloutJoin
from streams.stage import Emit, Outputs, Position, Positioned

REPEAT_PLACES = 1000  # over which units that repeat one environment are spread


class FreeRolloutJoin(RolloutJoin):
    """Generations with groups that no batch has taken, and groups to be asked for again. Inputs are only acknowledged."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        super().__init__(run_id, recipe)
        self._assembly = Assembly(recipe)
        self._slots: dict[int, SlotsClosed] = {}
        self._left: dict[int, list[int]] = {}  # generation -> steps not yet requested, ascending
        self._positions: dict[int, list[Position]] = {}
        self._stale: list[Stale] = []
        self._newest = -1

    def _know(self, positioned: Positioned) -> None:
        match positioned.record:
            case PolicyPublished(version=version):
                self._newest = max(self._newest, version)
            case SlotsClosed() as slots:
                self._note_slots(slots)
            case EnvScored() as scored:
                self._assembly.note_scored(scored)
            case RunEnding(last_generation=last):
                self.schedule = self.schedule.ended_at(last)
            case RolloutRequested(unit_id=unit_id):
                self._requested.add(unit_id)

    def _hold(self, positioned: Positioned) -> bool:
        slots = positioned.record
        if not isinstance(slots, SlotsClosed) or slots.generation in self._closed:
            return False
        self._note_slots(slots)
        self._positions.setdefault(slots.generation, []).append(positioned.position)
        return True

    def _note_slots(self, slots: SlotsClosed) -> None:
        if slots.generation in self._slots or slots.generation in self._closed:
            return  # a copy
        self._assembly.note_slots(slots)
        self._slots[slots.generation] = slots
        self._left[slots.generation] = list(self.schedule.steps_of(slots.generation))

    def _advance(self) -> Outputs:
        outputs = Outputs()
        for number in sorted(self._slots):
            left = self._left[number]
            while left and number < self.schedule.generations and self._newest >= self.schedule.play_version(left[0]):
                outputs.records += self._request(self._slots[number], left.pop(0))
        self._stale += self._assembly.advance()[1]
        waiting = []
        for stale in (one for one in self._stale if one.scored.generation in self._slots):
            if self._newest >= self.schedule.play_version(stale.batch):
                outputs.records += self._request_again(stale)
            else:
                waiting.append(stale)
        self._stale = waiting
        for number in sorted(self._slots):
            if number >= self.schedule.generations or self._assembly.is_used_up(number) is not None:
                self._finish(number, outputs)
        return outputs

    def _finish(self, number: int, outputs: Outputs) -> None:
        outputs.finished += self._positions.pop(number, [])
        self._closed.add(number)
        del self._slots[number], self._left[number]

    def _requested_members(self, slots: SlotsClosed, step: int) -> list[Member]:
        return list(slots.members)  # of every step: as many groups as the batches have room for

    def _request_again(self, stale: Stale) -> list[Emit]:
        """One unit with the trained arms of one environment, under new ids; unless it stands in the log."""
        scored, repeat = stale.scored, stale.scored.repeat + 1
        slots = self._slots[scored.generation]
        member = next(one for one in slots.members if one.env_id == scored.env_id)
        unit_id = ids.repeat_unit_id(scored.env_id, scored.step, repeat)
        if unit_id in self._requested:
            return []
        self._requested.add(unit_id)
        plays = self._plays_again(scored.env_id, scored.step, repeat)
        version = self.schedule.play_version(stale.batch)
        expected = {member.env_id: len(plays)}
        unit = self._unit(slots, scored.step, unit_id, [member], {member.env_id: plays}, version, expected, repeat=repeat)
        return [Emit(unit, self._place(unit_id))]

    def _plays_again(self, env_id: str, step: int, repeat: int) -> list[Play]:
        arms = trained_arms(self.recipe)
        first = step % self.recipe.schedule.interval == 0
        counts = {PLAIN: self.recipe.rollout.plain_plays, HINTED: self.recipe.rollout.hint_plays if first else 0}
        return [self._play(env_id, step, arm, index, repeat) for arm in arms for index in range(counts[arm])]

    @staticmethod
    def _place(unit_id: str) -> tuple[int, int]:
        """Spread over the pool by the unit's id."""
        return ids.sampling_seed(unit_id) % REPEAT_PLACES, REPEAT_PLACES
