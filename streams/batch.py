"""Batch stage: closes generations and writes the batches, each in order of its number.

In: env-scored (held until the generation is closed and all its batches are written); control: slots-closed, run-ending, own
generation-closed and batch-ready. Out: generation-closed, batch-ready. Called by streams/app.py. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas import ids
from schemas.common import Reference, VersionSpan
from schemas.design import SlotsClosed
from schemas.rollout import HINTED, PLAIN
from schemas.run import RunEnding
from schemas.score import EnvScored, GenerationClosed, PlayReturn
from schemas.settings import Recipe
from schemas.train import AGENT, DESIGNER, BatchReady, Sample
from streams.advantage import z_scores
from streams.eviction import Evictions
from streams.generation import close_generation
from streams.regret import Averages, fold_averages
from streams.stage import Emit, Join, Outputs, Position, Positioned


@dataclass(frozen=True)
class Played:
    """What a batch takes of plays."""

    scores: Sequence[EnvScored]
    trained: Sequence[EnvScored]  # those whose plays are samples
    evicted: int  # environments left out
    planned: int  # version of samples that tell none
    stale: int = 0  # samples that were dropped for age


@dataclass
class _Generation:
    """Scores of a generation whose batches are not all written, and the inputs that brought them."""

    scores: dict[tuple[str, int], EnvScored] = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)


class BatchJoin(Join):
    """Open generations, closed ones whose designs are not trained yet, and the last batch of one run."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        super().__init__(run_id, recipe)
        self._slots: dict[int, SlotsClosed] = {}
        self._open: dict[int, _Generation] = {}
        self._closed: dict[int, GenerationClosed] = {}  # until their designs are in a batch
        self._next_closing = 0
        self._finished = 0  # generations below are closed and batched
        self._last_batch = -1
        self._evictions = Evictions(self.schedule)
        self._averages: dict[str, Averages] = {}

    def _know(self, positioned: Positioned) -> None:
        match positioned.record:
            case SlotsClosed() as slots if slots.generation >= self._finished:
                self._slots.setdefault(slots.generation, slots)
            case GenerationClosed() as closed:
                self._note_closed(closed)
            case BatchReady(step=step):
                self._last_batch = max(self._last_batch, step)
            case RunEnding(last_generation=last):
                self.schedule = self.schedule.ended_at(last)

    def _hold(self, positioned: Positioned) -> bool:
        scored = positioned.record
        if not isinstance(scored, EnvScored) or self._is_finished(scored.generation):
            return False
        state = self._state(scored.generation)
        if (scored.env_id, scored.step) in state.scores:
            return False
        state.scores[scored.env_id, scored.step] = scored
        state.positions.append(positioned.position)
        self._evictions.note(scored)
        return True

    def _advance(self) -> Outputs:
        outputs = Outputs()
        while self._close_next(outputs) or self._batch_next(outputs) or self._finish_next(outputs):
            pass
        return outputs

    def _close_next(self, outputs: Outputs) -> bool:
        slots = self._slots.get(self._next_closing)
        if slots is None:
            return False
        if not self._is_window_complete(slots):
            return False
        if not self._evictions.probed(slots):
            return False
        state = self._state(slots.generation)
        closed = close_generation(self.run_id, self.recipe, slots, state.scores, self._averages)
        self._note_closed(closed)
        outputs.records.append(Emit(closed))
        return True

    def _state(self, generation: int) -> _Generation:
        return self._open.setdefault(generation, _Generation())

    def _is_window_complete(self, slots: SlotsClosed) -> bool:
        """Whether every score that the generation closes with is in."""
        return all(self._evictions.complete(slots, step) for step in self.schedule.steps_of(slots.generation))

    def _is_played(self, slots: SlotsClosed, step: int) -> bool:
        """Whether the plays of batch `step` are in; `slots`: the generation that the step plays."""
        return self._evictions.complete(slots, step)

    def _played(self, slots: SlotsClosed, step: int) -> Played:
        """The plays of a batch that has them all."""
        scores = self._state(slots.generation).scores
        requested = [scores[member.env_id, step] for member in self._evictions.requested(slots, step)]
        trained = {member.env_id for member in self._evictions.trained(slots, step)}
        return Played(
            scores=requested,
            trained=[scored for scored in requested if scored.env_id in trained],
            evicted=len(slots.members) - len(trained),
            planned=self.schedule.play_version(step),
        )

    def _note_closed(self, closed: GenerationClosed) -> None:
        if closed.generation != self._next_closing:
            return  # a copy
        self._next_closing += 1
        self._averages = fold_averages(
            self._averages,
            [(design.skill, design.w) for design in closed.designs if design.valid and not design.evicted],
        )
        self._closed[closed.generation] = closed

    def _batch_next(self, outputs: Outputs) -> bool:
        step = self.schedule.next_batch(self._last_batch)
        if step is None:
            return False
        due = self.schedule.designer_due(step)
        if due is not None and due not in self._closed:
            return False
        slots = None
        if not self.schedule.is_drain(step):
            slots = self._slots.get(self.schedule.generation_of(step))
            if slots is None or not self._is_played(slots, step):
                return False
        outputs.records.append(Emit(self._batch(step, slots, due)))
        self._last_batch = step
        return True

    def _is_finished(self, generation: int) -> bool:
        return generation < self._next_closing and self.schedule.steps_of(generation).stop - 1 <= self._last_batch

    def _finish_next(self, outputs: Outputs) -> bool:
        """Lets go of what no later batch needs; True where a generation was finished."""
        for generation in [g for g in self._closed if self.schedule.designer_step(g) <= self._last_batch]:
            del self._closed[generation]
        if not self._is_finished(self._finished):
            return False
        slots = self._slots.pop(self._finished, None)
        if slots is not None:
            self._evictions.forget(slots)
        outputs.finished += self._open.pop(self._finished, _Generation()).positions
        self._finished += 1
        return True

    def _batch(self, step: int, slots: SlotsClosed | None, due: int | None) -> BatchReady:
        played = self._played(slots, step) if slots is not None else Played([], [], 0, step)
        agent = self._agent_samples(played, step)
        designer = self._designer_samples(due, step) if due is not None else []
        again = {play.play_id for scored in played.trained if scored.repeat for arm in scored.arms for play in arm.plays}
        return BatchReady(
            run_id=self.run_id,
            event_id=ids.event_id("batch", self.run_id, step),
            causation_id=slots.event_id if slots is not None else self._closed[due].event_id if due is not None else "",
            step=step,
            generation=slots.generation if slots is not None else -1,
            designer_generation=-1 if due is None else due,
            samples=agent + designer,
            drain=slots is None,
            lost=sum(scored.lost for scored in played.scores),
            evicted=played.evicted,
            stale=played.stale,
            asked_again=sum(sample.sample_id in again for sample in agent),
        )

    def _agent_samples(self, played: Played, step: int) -> list[Sample]:
        """The batch's plays, arm by arm and by index, with their advantages."""
        rollout = self.recipe.rollout
        arms = (PLAIN, HINTED) if rollout.train_hint_arm else (PLAIN,)
        plays: list[tuple[EnvScored, str, PlayReturn]] = [
            (scored, arm.arm, play) for scored in played.trained for arm in scored.arms if arm.arm in arms for play in arm.plays
        ]
        by_arm = rollout.advantage_group == "environment-arm"
        groups = [(scored.env_id, scored.step, arm if by_arm else "") for scored, arm, _ in plays]
        advantages = z_scores([play.episode_return for _, _, play in plays], groups)
        return [
            _sample(play.reference, play.play_id, AGENT, advantage, step, play.versions, played.planned, arm)
            for (_, arm, play), advantage in zip(plays, advantages, strict=True)
        ]

    def _designer_samples(self, generation: int, step: int) -> list[Sample]:
        planned = self.schedule.design_version(generation)
        return [
            _sample(design.proposal, design.env_id, DESIGNER, design.advantage, step, design.versions, planned)
            for design in self._closed[generation].designs
            if design.trained
        ]


def _sample(
    reference: Reference,
    sample_id: str,
    role: str,
    advantage: float,
    step: int,
    versions: VersionSpan,
    planned: int,
    arm: str = "",
) -> Sample:
    """A sample with its age as measured; by the `planned` version where it has no sampled token, or its record tells none."""
    oldest = versions.oldest if versions.oldest >= 0 else planned
    return Sample(
        reference=reference,
        sample_id=sample_id,
        role=role,
        advantage=advantage,
        policy_version=oldest,
        lag=step - oldest,
        arm=arm,
        versions=versions,
    )
