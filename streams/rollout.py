"""Rollout stage: which plays of which step are asked for, once the policy that plays them is published.

In: slots-closed (held until all K steps of the generation are requested); control: policy-published, env-scored (for
evictions), run-ending, own rollout-requested. Out: rollout-requested. Called by streams/app.py. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas import ids
from schemas.design import Member, SlotsClosed
from schemas.rollout import (
    EARLIER,
    EARLIER_HINTED,
    EARLIER_PLAIN,
    HINTED,
    PLAIN,
    PROBE_HINTED,
    PROBE_PLAIN,
    PROBES,
    Play,
    PlayEnvironment,
    RolloutRequested,
)
from schemas.run import RunEnding
from schemas.score import EnvScored
from schemas.settings import Recipe
from schemas.train import PolicyPublished
from streams.eviction import Evictions
from streams.stage import Emit, Join, Outputs, Position, Positioned


@dataclass
class _Generation:
    slots: SlotsClosed
    positions: list[Position]
    left: list[int] = field(default_factory=list)  # steps not yet requested, ascending


class RolloutJoin(Join):
    """Open generations, published versions and evictions of one run."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        super().__init__(run_id, recipe)
        self._generations: dict[int, _Generation] = {}
        self._closed: set[int] = set()
        self._versions: set[int] = set()
        self._evictions = Evictions(self.schedule)
        self._requested: set[str] = set()

    def _know(self, positioned: Positioned) -> None:
        match positioned.record:
            case PolicyPublished(version=version):
                self._versions.add(version)
            case EnvScored() as scored if scored.generation not in self._closed:
                self._evictions.note(scored)
            case RunEnding(last_generation=last):
                self.schedule = self.schedule.ended_at(last)
            case RolloutRequested(unit_id=unit_id):
                self._requested.add(unit_id)

    def _hold(self, positioned: Positioned) -> bool:
        slots = positioned.record
        if not isinstance(slots, SlotsClosed) or slots.generation in self._generations or slots.generation in self._closed:
            return False
        steps = list(self.schedule.steps_of(slots.generation))
        self._generations[slots.generation] = _Generation(slots, [positioned.position], steps)
        return True

    def _advance(self) -> Outputs:
        outputs = Outputs()
        for number in sorted(self._generations):
            generation = self._generations[number]
            beyond = number >= self.schedule.generations
            while generation.left and not beyond and self._ready(generation.slots, generation.left[0]):
                outputs.records += self._request(generation.slots, generation.left.pop(0))
            if beyond or not generation.left:
                outputs.finished += generation.positions
                self._closed.add(number)
                self._evictions.forget(generation.slots)
                del self._generations[number]
        return outputs

    def _ready(self, slots: SlotsClosed, step: int) -> bool:
        """Whether the playing version is published and every score that may evict for this step is in."""
        return self.schedule.play_version(step) in self._versions and self._evictions.known_for_request(slots, step)

    def _requested_members(self, slots: SlotsClosed, step: int) -> list[Member]:
        return self._evictions.requested(slots, step)

    def _request(self, slots: SlotsClosed, step: int) -> list[Emit]:
        members = self._requested_members(slots, step)
        rollout = self.recipe.rollout
        plays = {member.env_id: self._plays(member.env_id, step) for member in members}
        earlier = {member.env_id: self._earlier_plays(member.env_id, step) for member in members}
        if self._is_first(step):  # what is probed is played by the same policy, in the same units
            probed = [probe.member for probe in slots.probes]
            plays |= {member.env_id: self._probe_plays(member.env_id, step) for member in probed}
            earlier |= {member.env_id: [] for member in probed}
            members = [*members, *probed]
        expected = {env_id: len(plays[env_id]) + len(earlier[env_id]) for env_id in plays}
        packages = split_evenly(members, rollout.units)
        # An earlier policy samples units of its own: a unit names one policy.
        kinds = [(plays, self.schedule.play_version(step))]
        if any(earlier.values()):
            kinds.append((earlier, self.schedule.earlier_version(step, rollout.earlier_steps)))
        units = [(package, *kind) for kind in kinds for package in packages]
        emits = []
        for index, (package, own, version) in enumerate(units):
            unit_id = ids.rollout_unit_id(self.run_id, step, index)
            if unit_id in self._requested:
                continue
            self._requested.add(unit_id)
            emits.append(Emit(self._unit(slots, step, unit_id, package, own, version, expected), (index, len(units))))
        return emits

    def _unit(
        self,
        slots: SlotsClosed,
        step: int,
        unit_id: str,
        members: Sequence[Member],
        plays: Mapping[str, list[Play]],
        version: int,
        expected: Mapping[str, int],
        *,
        repeat: int = 0,
    ) -> RolloutRequested:
        rollout = self.recipe.rollout
        return RolloutRequested(
            run_id=self.run_id,
            event_id=unit_id,
            causation_id=slots.event_id,
            unit_id=unit_id,
            step=step,
            generation=slots.generation,
            policy_version=version,
            settings=rollout.sampling.on_wire(),
            max_turns=rollout.max_turns,
            context_tokens=rollout.context_tokens,
            environments=[
                PlayEnvironment(
                    env_id=member.env_id,
                    source=member.source,
                    hint=member.hint,
                    witness_min_return=member.witness_min_return,
                    reward_min=member.reward_min,
                )
                for member in members
            ],
            plays=[play for member in members for play in plays[member.env_id]],
            plays_expected={member.env_id: expected[member.env_id] for member in members},
            newest=self.recipe.schedule.kind == "free" and not any(play.arm in EARLIER for own in plays.values() for play in own),
            repeat=repeat,
        )

    def _plays(self, env_id: str, step: int) -> list[Play]:
        rollout = self.recipe.rollout
        arms = [(PLAIN, rollout.plain_plays)] + ([(HINTED, rollout.hint_plays)] if self._is_first(step) else [])
        return [self._play(env_id, step, arm, index) for arm, count in arms for index in range(count)]

    def _earlier_plays(self, env_id: str, step: int) -> list[Play]:
        """The check by an earlier policy: both arms on the seeds of the play that they check."""
        indices = range(self.recipe.rollout.earlier_plays if self._is_first(step) else 0)
        return [self._play(env_id, step, arm, index) for arm in (EARLIER_PLAIN, EARLIER_HINTED) for index in indices]

    def _probe_plays(self, env_id: str, step: int) -> list[Play]:
        """How an earlier environment stands now: both arms on the same seeds, which are new ones."""
        arms = (PROBE_PLAIN, PROBE_HINTED) if self.recipe.rollout.hint_plays else (PROBE_PLAIN,)
        return [self._play(env_id, step, arm, index) for arm in arms for index in range(self.recipe.memory.probe_plays)]

    def _is_first(self, step: int) -> bool:
        """Whether the step is its generation's first."""
        return step % self.recipe.schedule.interval == 0

    def _play(self, env_id: str, step: int, arm: str, index: int, repeat: int = 0) -> Play:
        play_id = ids.play_id(env_id, step, arm, index, repeat)
        return Play(
            play_id=play_id,
            env_id=env_id,
            arm=arm,
            index=index,
            env_seed=ids.env_seed(env_id, step, seed_index(self.recipe, arm, index)),
            sampling_seed=ids.sampling_seed(play_id),
        )


def seed_index(recipe: Recipe, arm: str, index: int) -> int:
    """Which of an environment's seeds a play uses: the same in both arms where they are paired, else every play its own.

    The arms of an earlier policy, and those of probe plays, are always paired.
    """
    rollout = recipe.rollout
    if rollout.paired or arm in EARLIER | PROBES:
        return index % rollout.seeds
    return index if arm == PLAIN else rollout.plain_plays + index


def split_evenly(members: Sequence[Member], parts: int) -> list[Sequence[Member]]:
    """At most `parts` runs of members, whole environments each, whose sizes differ by one at most; none is empty."""
    count = min(parts, len(members))
    bounds = [len(members) * part // count for part in range(count + 1)] if count else []
    return [members[low:high] for low, high in itertools.pairwise(bounds)]
