"""The batch stage of the free schedule: batches of the groups that were scored first, generations closed by their first scores.

In: env-scored (held until the generation is closed and all its groups are in written batches); control: env-scored from the run's
start, slots-closed, run-ending, own generation-closed and batch-ready. Out: generation-closed, batch-ready. Called by
streams/app.py. Pure. Control alone decides, inputs are only acknowledged: what a batch holds follows from the order of all
scores of the run (streams/assembly.py), so a restart, and a process that was taken for dead, write equal records.
"""

from __future__ import annotations

from schemas.design import SlotsClosed
from schemas.score import EnvScored
from schemas.settings import Recipe
from streams.assembly import Assembly, Filled
from streams.batch import BatchJoin, Played
from streams.stage import Outputs, Positioned


class FreeBatchJoin(BatchJoin):
    """Open generations, filled batches that are not written, and the last batch of one run."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        super().__init__(run_id, recipe)
        self._assembly = Assembly(recipe)
        self._filled: dict[int, Filled] = {}

    def _know(self, positioned: Positioned) -> None:
        super()._know(positioned)
        match positioned.record:
            case SlotsClosed() as slots:
                self._assembly.note_slots(slots)
            case EnvScored() as scored:
                self._assembly.note_scored(scored)
                self._evictions.note(scored)
                if not scored.repeat and not self._is_finished(scored.generation):
                    self._state(scored.generation).scores.setdefault((scored.env_id, scored.step), scored)

    def _hold(self, positioned: Positioned) -> bool:
        scored = positioned.record
        if not isinstance(scored, EnvScored) or self._is_finished(scored.generation):
            return False
        self._state(scored.generation).positions.append(positioned.position)
        return True

    def _advance(self) -> Outputs:
        self._filled.update((one.step, one) for one in self._assembly.advance()[0])
        for step in [step for step in self._filled if step <= self._last_batch]:
            del self._filled[step]
        return super()._advance()

    def _is_window_complete(self, slots: SlotsClosed) -> bool:
        scores = self._state(slots.generation).scores
        steps = self.schedule.steps_of(slots.generation)
        return all((member.env_id, step) in scores for member in slots.members for step in steps)

    def _is_played(self, slots: SlotsClosed, step: int) -> bool:
        return step in self._filled

    def _played(self, slots: SlotsClosed, step: int) -> Played:
        filled = self._filled.pop(step)
        return Played(
            scores=[group.scored for group in filled.groups],
            trained=[group.scored for group in filled.groups if group.samples],
            evicted=len(filled.evicted),
            planned=step,
            stale=filled.stale,
        )

    def _is_finished(self, generation: int) -> bool:
        last = self._assembly.is_used_up(generation)
        return last is not None and last <= self._last_batch and super()._is_finished(generation)
