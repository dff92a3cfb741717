"""Design stage: opens generations, asks again for rejected slots, closes the slots.

In: env-validated and env-rejected (held until the generation's slots close); control: policy-published, generation-closed,
run-ending, env-validated of earlier generations (signatures), own design-requested and slots-closed. Out: design-requested,
slots-closed, run-ending. Called by streams/app.py, which answers `Outputs.openings` with `open`: memory and the clock are its
affair. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas import ids
from schemas.design import (
    CollapseReaction,
    DesignRequested,
    DesignSlot,
    Document,
    EnvRejected,
    EnvValidated,
    MemoryLine,
    Probe,
    SlotsClosed,
)
from schemas.run import RunEnding
from schemas.score import GenerationClosed
from schemas.settings import Recipe
from schemas.train import PolicyPublished
from streams.closing import Signatures, Verdict, close_slots
from streams.collapse import CollapseControl, Reaction
from streams.levels import Ladder
from streams.slots import block_of, block_skill, fill_slots
from streams.stage import Emit, Join, Outputs, Position, Positioned


@dataclass
class _Generation:
    """An open generation: memory lines by slot, verdicts by (slot, attempt), inputs held."""

    memory: dict[int, list[MemoryLine]] = field(default_factory=dict)
    verdicts: dict[tuple[int, int], Verdict] = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)


class DesignJoin(Join):
    """Open generations of one run, and what is known of the closed ones."""

    def __init__(self, run_id: str, recipe: Recipe, documents: Sequence[Document]) -> None:
        super().__init__(run_id, recipe)
        self._documents = documents
        self._ladder = Ladder(recipe, documents) if recipe.pool == "procedural" else None
        self._units = _split_slots(recipe.design.environments, recipe.design.units)
        self._open: dict[int, _Generation] = {}
        self._closed: dict[int, SlotsClosed] = {}
        self._requested: set[str] = set()
        self._versions: set[int] = set()
        self._remembered: set[int] = set()  # generations with a generation-closed record
        self._signatures = Signatures()
        self._collapse = CollapseControl(recipe, self._closed)
        self._asked: set[int] = set()
        self._probes: dict[int, dict[str, int]] = {}  # generation -> what it plays again

    def open(
        self, generation: int, memory: Sequence[list[MemoryLine]], *, time_is_up: bool, probes: Mapping[str, int] | None = None
    ) -> Outputs:
        """Opens a generation that `openings` named, with the memory lines of each block; ends the run where time is up.

        `probes`: earlier environments to play again, by env_id: generation, the most wanted first; those that generations of
        which memory knows nothing yet play already are passed over. A generation of which a request stands in the log already is
        completed, whatever the time.
        """
        if generation >= self.schedule.generations or self._is_open(generation):
            return self._advance()
        started = any(self._unit_id(generation, 0, unit) in self._requested for unit in range(len(self._units)))
        if time_is_up and generation > 0 and not started:
            self.schedule = self.schedule.ended_at(generation - 1)
            return Outputs(records=[Emit(self._ending(generation - 1))])
        state = self._open.setdefault(generation, _Generation())
        self._probes.setdefault(generation, self._choose_probes(generation, probes or {}))
        outputs = Outputs()
        shown = self._adapted(generation, memory)
        for unit, slots in enumerate(self._units):
            lines = {slot: shown[block_of(self.recipe, slot)] for slot in slots}
            state.memory = lines | state.memory
            outputs.records += self._request(generation, 0, unit, slots)
        outputs.add(self._advance())
        return outputs

    def reaction(self, generation: int) -> Reaction | None:
        """The collapse control's reaction for a generation whose memory is there; none while diversity is well."""
        return self._collapse.reaction(self.schedule.memory_generation(generation))

    def _adapted(self, generation: int, memory: Sequence[list[MemoryLine]]) -> list[list[MemoryLine]]:
        newest = self.schedule.memory_generation(generation)
        return [
            self._collapse.adapt(lines, block_skill(self.recipe, generation, block), newest) for block, lines in enumerate(memory)
        ]

    def _know(self, positioned: Positioned) -> None:
        match positioned.record:
            case PolicyPublished(version=version):
                self._versions.add(version)
            case GenerationClosed() as closing:
                self._remembered.add(closing.generation)
                self._collapse.note(closing)
                if self._ladder is not None:
                    self._ladder.note(closing)
            case RunEnding(last_generation=last):
                self.schedule = self.schedule.ended_at(last)
            case EnvValidated() as validated:
                self._signatures.note(validated)
            case DesignRequested() as request:
                self._know_request(request)
            case SlotsClosed() as slots:
                self._note_closed(slots)

    def _know_request(self, request: DesignRequested) -> None:
        self._requested.add(request.unit_id)
        if request.unit_id == self._unit_id(request.generation, 0, 0):
            self._probes.setdefault(request.generation, request.probes)
        if request.generation not in self._closed:
            state = self._open.setdefault(request.generation, _Generation())
            for slot in request.slots:
                state.memory.setdefault(slot.slot, slot.memory)

    def _note_closed(self, slots: SlotsClosed) -> None:
        self._closed.setdefault(slots.generation, slots)
        self._signatures.close(slots)
        self._open.pop(slots.generation, None)

    def _hold(self, positioned: Positioned) -> bool:
        record = positioned.record
        if not isinstance(record, EnvValidated | EnvRejected) or record.generation in self._closed:
            return False
        state = self._open.setdefault(record.generation, _Generation())
        key = (record.slot, record.design_attempt)
        if key in state.verdicts:
            return False
        if isinstance(record, EnvValidated):
            self._signatures.note(record)
        state.verdicts[key] = record
        state.positions.append(positioned.position)
        return True

    def _advance(self) -> Outputs:
        outputs = Outputs()
        for generation in sorted(self._open):
            if self._is_open(generation):
                outputs.add(self._advance_generation(generation))
        following = self._next_generation()
        if following is not None and following not in self._asked:
            self._asked.add(following)
            outputs.openings.append(following)
        return outputs

    def _next_generation(self) -> int | None:
        """The first generation that is not open yet, where all that it waits for in the log is there."""
        generation = 0
        while self._is_open(generation):
            generation += 1
        memory = self.schedule.memory_generation(generation)
        due = generation < self.schedule.generations and self.schedule.design_version(generation) in self._versions
        return generation if due and (memory is None or memory in self._remembered) else None

    def _is_open(self, generation: int) -> bool:
        """Whether every first unit of the generation is requested."""
        if generation in self._closed:
            return True
        return all(self._unit_id(generation, 0, unit) in self._requested for unit in range(len(self._units)))

    def _advance_generation(self, generation: int) -> Outputs:
        outputs = Outputs()
        state = self._open[generation]
        decided = True
        for unit, slots in enumerate(self._units):
            pending = slots
            for attempt in range(self.recipe.design.attempts):
                outputs.records += self._request(generation, attempt, unit, pending)
                if not all((slot, attempt) in state.verdicts for slot in pending):
                    decided = False
                    break
                pending = [slot for slot in pending if isinstance(state.verdicts[slot, attempt], EnvRejected)]
                if not pending:
                    break
        if decided:
            slots_closed = self._close(generation, state)
            self._note_closed(slots_closed)
            outputs.records.append(Emit(slots_closed))
            outputs.finished += state.positions
        return outputs

    def _close(self, generation: int, state: _Generation) -> SlotsClosed:
        limit = self.schedule.memory_generation(generation)
        earlier = [] if limit is None else [slots for number, slots in self._closed.items() if number <= limit]
        return close_slots(
            self.run_id,
            self.recipe,
            generation,
            self._designed_by(generation, state),
            state.verdicts,
            self._signatures,
            earlier,
            self._probed(generation),
        )

    def _designed_by(self, generation: int, state: _Generation) -> int:
        """The oldest version that wrote a design; the schedule's where none tells."""
        told = [verdict.versions.oldest for verdict in state.verdicts.values() if verdict.versions.oldest >= 0]
        return min(told, default=self.schedule.design_version(generation))

    def _choose_probes(self, generation: int, wanted: Mapping[str, int]) -> dict[str, int]:
        under_way = {
            env_id for earlier, probes in self._probes.items() if self._is_unknown(earlier, generation) for env_id in probes
        }
        left = [(env_id, own) for env_id, own in wanted.items() if env_id not in under_way]
        return dict(left[: self.recipe.memory.probe_environments])

    def _is_unknown(self, earlier: int, generation: int) -> bool:
        """Whether memory for the designs of `generation` does not hold what the generation before it measures."""
        newest = self.schedule.memory_generation(generation)
        return earlier < generation and (newest is None or earlier > newest)

    def _probed(self, generation: int) -> list[Probe]:
        """What the generation plays again, in full; its environments are members of closed generations."""
        named = self._probes.get(generation, {})
        members = {member.env_id: member for own in set(named.values()) for member in self._closed[own].members}
        return [Probe(generation=own, member=members[env_id]) for env_id, own in named.items()]

    def _request(self, generation: int, attempt: int, unit: int, slots: Sequence[int]) -> list[Emit]:
        """The unit's request at an attempt, unless it stands in the log."""
        unit_id = self._unit_id(generation, attempt, unit)
        if unit_id in self._requested:
            return []
        self._requested.add(unit_id)
        memory = {slot: self._open[generation].memory[slot] for slot in slots}
        found = self.reaction(generation)
        reaction = found.record if found else None
        filled = fill_slots(self.run_id, self.recipe, self._documents, generation, attempt, memory, self._ladder, reaction)
        return [Emit(self._design_request(generation, attempt, unit_id, filled, reaction), (unit, len(self._units)))]

    def _design_request(
        self, generation: int, attempt: int, unit_id: str, slots: list[DesignSlot], reaction: CollapseReaction | None
    ) -> DesignRequested:
        design = self.recipe.design
        return DesignRequested(
            run_id=self.run_id,
            event_id=unit_id,
            unit_id=unit_id,
            generation=generation,
            design_attempt=attempt,
            policy_version=self._policy(generation),
            settings=design.sampling.on_wire(),
            hint_settings=design.hint_sampling.on_wire() if design.hint_by_second_call else None,
            slots=slots,
            probes=self._probes.get(generation, {}) if unit_id == self._unit_id(generation, 0, 0) else {},
            reaction=reaction,
        )

    def _policy(self, generation: int) -> int:
        """The version that a request names: 0 of a frozen designer, which shares no trained weight; else the schedule's; where
        that is free, the newest that is published."""
        if self.recipe.designer == "frozen":
            return 0
        planned = self.schedule.design_version(generation)
        return max(self._versions, default=planned) if self.recipe.schedule.kind == "free" else planned

    def _unit_id(self, generation: int, attempt: int, unit: int) -> str:
        return ids.design_unit_id(self.run_id, generation, attempt, unit)

    def _ending(self, last: int) -> RunEnding:
        return RunEnding(
            run_id=self.run_id,
            event_id=ids.event_id("run-ending", self.run_id),
            last_generation=last,
            cause=f"max_minutes ({self.recipe.max_minutes:g}) is over",
        )


def _split_slots(environments: int, units: int) -> list[list[int]]:
    count = min(units, environments)
    bounds = [environments * unit // count for unit in range(count + 1)]
    return [list(range(low, high)) for low, high in itertools.pairwise(bounds)]
