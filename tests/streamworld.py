"""Synthetic workers and a synthetic log for tests of the stream stages.

The workers answer requests as the real ones would, by a hash of ids: what is valid, lost, non-finite or unequal is a function
of the request. `World` runs the four joins over an in-memory log in a random order, with random restarts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from infra.kafka import partition_of, unit_partition
from infra.selection import BEST, HARD, Candidate, choose_probes
from infra.sourcetext import PERMUTATIONS
from schemas import ids
from schemas.common import Record, Reference, SamplingSettings, Span, version_span
from schemas.design import DesignRequested, Document, EnvProposed, EnvRejected, EnvValidated
from schemas.recipes import build_recipe
from schemas.rollout import WITH_HINT, AuditFinished, AuditRequested, RolloutFinished, RolloutRequested
from schemas.run import RunEnding
from schemas.score import GenerationClosed
from schemas.settings import Recipe
from schemas.topics import BY_RECORD, Topic, key_of
from schemas.train import BatchReady, Canary, PolicyPublished
from streams.batch import BatchJoin
from streams.design import DesignJoin
from streams.freebatch import FreeBatchJoin
from streams.freerollout import FreeRolloutJoin
from streams.held import HeldInputs
from streams.rollout import RolloutJoin
from streams.schedule import Schedule
from streams.score import ScoreJoin
from streams.slots import count_blocks
from streams.stage import Emit, Join, Outputs, Positioned, Stage
from streams.stages import SPECS

DOCUMENTS = [  # three families of four levels, where a procedural pool asks for them
    Document(document_id=f"d{number}", title="", text=f"text {number}", family="abc"[number % 3], level=number // 3)
    for number in range(12)
]


@dataclass(frozen=True)
class Shares:
    """How often a synthetic worker fails, by a hash of ids."""

    invalid: float = 0.2
    lost_play: float = 0.05
    non_finite: float = 0.02
    unequal: float = 0.1
    empty_generation: int = -1  # a generation all of whose designs are refused
    alike_from: int = (
        -1
    )  # from this generation on all designs are one, but for those asked for by the collapse control; before, none


def small_recipe(**overrides: Any) -> Recipe:
    """Two skills, six slots, two plays an arm: the smallest recipe that has every kind of group."""
    values = {
        "skills": ["logic", "maths"],
        "design": {"environments": 6, "attempts": 2, "units": 2, "skills_active": 2, "duplicate": "penalise"},
        "rollout": {"plain_plays": 2, "hint_plays": 2, "seeds": 2, "units": 2, "audit_share": 0.3},
        "schedule": {"steps": 8, "interval": 2, "delay": 2, "lag": 1, "lead": 2, "memory_lag": 2},
        "memory": {"enabled": False},
    }
    return build_recipe(values, {name.replace("__", "."): value for name, value in overrides.items()})


def policy(run_id: str, version: int) -> PolicyPublished:
    """What a trainer would publish."""
    return PolicyPublished(
        run_id=run_id,
        event_id=ids.event_id("policy", run_id, version, "digest"),
        version=version,
        digest="digest",
        place="",
        canary=Canary(tokens=b"", logprobs=b""),
    )


def answer(record: Record, shares: Shares, newest: int = 0) -> list[Record]:
    """What the workers write in answer to a request; `newest`: the policy that a worker finds published."""
    match record:
        case DesignRequested() as request:
            places = range(len(request.slots))
            return [make(request, place) for place in places for make in (_proposal, lambda r, p: _verdict(r, p, shares))]
        case RolloutRequested() as request:
            version = max(request.policy_version, newest) if request.newest else request.policy_version
            return [_play(request, place, shares, version) for place in range(len(request.plays))]
        case AuditRequested() as request:
            return [
                AuditFinished(
                    run_id=request.run_id,
                    event_id=ids.event_id("audit-finished", request.play_id),
                    play_id=request.play_id,
                    env_id=request.env_id,
                    step=request.step,
                    generation=request.generation,
                    equal=not ids.chosen(request.play_id, shares.unequal, "unequal"),
                    repeat=request.repeat,
                )
            ]
        case BatchReady(run_id=run_id, step=step, drain=False):
            return [policy(run_id, step + 1)]
    return []


def _proposal(request: DesignRequested, place: int) -> Record:
    slot = request.slots[place]
    return EnvProposed(
        run_id=request.run_id,
        event_id=slot.env_id,
        env_id=slot.env_id,
        unit_id=request.unit_id,
        generation=request.generation,
        slot=slot.slot,
        design_attempt=slot.design_attempt,
        skill=slot.skill,
        document_id=slot.document.document_id,
        group=slot.group,
    )


def _verdict(request: DesignRequested, place: int, shares: Shares) -> Record:
    slot = request.slots[place]
    common: dict[str, Any] = {
        "run_id": request.run_id,
        "env_id": slot.env_id,
        "generation": request.generation,
        "slot": slot.slot,
        "design_attempt": slot.design_attempt,
        "skill": slot.skill,
        "document_id": slot.document.document_id,
        "group": slot.group,
        "source": _source(request, slot.slot, place, shares),
        "hint": "count",
        "proposal": Reference(topic="spade-env-proposed", partition=0, offset=0, id=slot.env_id),
        "proof": [],
        "versions": version_span([_span(request.policy_version)]),
    }
    if request.generation == shares.empty_generation or ids.chosen(slot.env_id, shares.invalid, "invalid"):
        return EnvRejected(event_id=ids.event_id("rejected", slot.env_id), rule="parse", evidence="no fence", **common)
    return EnvValidated(
        event_id=ids.event_id("validated", slot.env_id),
        full_source=common["source"],
        source_digest=str(slot.slot % 4),
        signature=[_mark(request, slot.slot, shares)] * PERMUTATIONS,
        witness_min_return=1.0,
        witness_mean_return=1.0,
        reward_min=0.0,
        **common,
    )


def _is_alike(request: DesignRequested, shares: Shares) -> bool:
    return request.generation >= shares.alike_from and request.reaction is None


def _source(request: DesignRequested, slot: int, place: int, shares: Shares) -> str:
    """What a design is; its skeleton differs by an attribute's name alone."""
    if shares.alike_from < 0 or _is_alike(request, shares):
        return f"def step(action):\n    return {slot % 4} + {place}\n"
    return f"def step(action):\n    return action.{'abcdefghij'[slot] * 9}()\n"


def _mark(request: DesignRequested, slot: int, shares: Shares) -> int:
    """What all of a design's signature is."""
    if shares.alike_from < 0:
        return slot % 4
    return 0 if _is_alike(request, shares) else 100 * request.generation + slot + 1


def _span(version: int) -> Span:
    return Span(start=0, end=1, policy_version=version, policy_digest="digest", settings=SamplingSettings())


def _play(request: RolloutRequested, place: int, shares: Shares, version: int) -> RolloutFinished:
    play = request.plays[place]
    lost = "worker died" if ids.chosen(play.play_id, shares.lost_play, "lost") else ""
    broken = not lost and ids.chosen(play.play_id, shares.non_finite, "non-finite")
    won = ids.chosen(play.play_id, 0.8 if play.arm in WITH_HINT else 0.4, "won")
    return RolloutFinished(
        run_id=request.run_id,
        event_id=play.play_id,
        play_id=play.play_id,
        unit_id=request.unit_id,
        env_id=play.env_id,
        step=request.step,
        generation=request.generation,
        arm=play.arm,
        index=play.index,
        env_seed=play.env_seed,
        plays_expected=request.plays_expected[play.env_id],
        episode_return=float("nan") if broken else float(won) if not lost else 0.0,
        won=won and not lost and not broken,
        end_reason="non_finite" if broken else "terminated",
        lost=lost,
        spans=[] if lost else [_span(version)],
        repeat=request.repeat,
    )


class FakeEvent:
    """Takes the place of a Faust event in a ledger."""

    def ack(self) -> None:
        return None


@dataclass
class Process:
    """One stage's process: its join, what it holds, how far it has read."""

    stage: Stage
    join: Join
    held: HeldInputs = field(default_factory=HeldInputs)
    read: dict[tuple[Topic, int], int] = field(default_factory=lambda: defaultdict(int))
    known: dict[tuple[Topic, int], int] = field(default_factory=lambda: defaultdict(int))
    openings: list[int] = field(default_factory=list)


class World:
    """Four stages, workers and a trainer over a log in memory, moved one random action at a time."""

    def __init__(
        self, recipe: Recipe, shares: Shares, seed: int, *, restart: float = 0.0, end_at: int = -1, run_id: str = "run"
    ) -> None:
        self.recipe = recipe
        self.shares = shares
        self.run_id = run_id
        self.log: dict[tuple[Topic, int], list[Record]] = defaultdict(list)
        self._random = random.Random(seed)
        self._restart = restart
        self._end_at = end_at  # time is up when this generation is opened
        self._ordered = restart == 0.0 and seed == 0
        self._work: list[Record] = []
        self._begun: list[tuple[RolloutRequested, int, list[Record]]] = []  # free: units at a worker, its policy, its answers
        self._newest = 0
        self._committed: dict[tuple[str, int], int] = {}
        self.restarts = 0
        self.processes = {stage: self._start(stage) for stage in Stage}
        self.write(policy(self.run_id, 0))

    def records(self, topic: Topic) -> list[Record]:
        """A topic's records, first of each id, in log order."""
        found: dict[str, Record] = {}
        for (held, _), records in sorted(self.log.items(), key=lambda item: (item[0][0].wire, item[0][1])):
            if held is topic:
                for record in records:
                    found.setdefault(record.event_id, record)
        return list(found.values())

    def run(self) -> None:
        """Moves until nothing is left to do."""
        while actions := list(self._actions()):
            kind, argument = actions[0] if self._ordered else self._random.choice(actions)
            if self._random.random() < self._restart:
                stage = self._random.choice(list(Stage))
                self.processes[stage] = self._start(stage)
                self.restarts += 1
                continue
            getattr(self, f"_do_{kind}")(argument)

    def unread(self) -> list[tuple[str, int]]:
        """Inputs that were not acknowledged: commits that did not reach the end."""
        return [
            (topic.wire, len(records) - self._commit(stage, topic, partition))
            for stage in Stage
            for (topic, partition), records in self.log.items()
            if topic in SPECS[stage].inputs and self._commit(stage, topic, partition) < len(records)
        ]

    def plan(self) -> dict[str, Any]:
        """What was decided: batches and members, without places in the log."""
        batches = [record for record in self.records(Topic.BATCH_READY) if isinstance(record, BatchReady)]
        return {
            "batches": [(b.step, b.generation, b.designer_generation, b.drain, b.lost, b.evicted, _samples(b)) for b in batches],
            "generations": [
                [(d.env_id, d.reward, d.advantage, d.trained, d.evicted) for d in getattr(record, "designs", [])]
                for record in self.records(Topic.GENERATION_CLOSED)
            ],
            "probes": [getattr(record, "probes", []) for record in self.records(Topic.GENERATION_CLOSED)],
            "requests": sorted(getattr(r, "unit_id", "") for r in self.records(Topic.ROLLOUT_REQUESTED)),
        }

    def write(self, record: Record, unit: tuple[int, int] | None = None) -> None:
        """Appends to the log; workers and the trainer see it."""
        topic = BY_RECORD[type(record)]
        partition = unit_partition(*unit, 3) if unit else partition_of(key_of(record), 3)
        self.log[topic, partition].append(record)
        if isinstance(record, PolicyPublished):
            self._newest = max(self._newest, record.version)
        if answer(record, self.shares):
            self._work.append(record)

    def _actions(self) -> Iterator[tuple[str, Any]]:
        for stage, process in self.processes.items():
            for (topic, partition), records in self.log.items():
                if topic in SPECS[stage].control_topics(self.recipe) and process.known[topic, partition] < len(records):
                    yield "learn", (stage, topic, partition)
                if topic in SPECS[stage].inputs and process.read[topic, partition] < len(records):
                    yield "accept", (stage, topic, partition)
            for generation in process.openings:
                yield "open", (stage, generation)
        batches = [record.step for record in self._work if isinstance(record, BatchReady)]
        free = self.recipe.schedule.kind == "free"
        for record in self._work:
            if not free or not isinstance(record, BatchReady | RolloutRequested):
                yield "work", record
            elif isinstance(record, RolloutRequested):
                yield "begin", record
            elif record.step == min(batches):  # one trainer publishes in order
                yield "work", record
        for unit in self._begun:
            yield "deliver", unit

    def _do_learn(self, argument: tuple[Stage, Topic, int]) -> None:
        stage, topic, partition = argument
        process = self.processes[stage]
        place = process.known[topic, partition]
        process.known[topic, partition] += 1
        self._carry(process, process.join.learn(Positioned(topic, partition, place, self.log[topic, partition][place])))

    def _do_accept(self, argument: tuple[Stage, Topic, int]) -> None:
        stage, topic, partition = argument
        process = self.processes[stage]
        place = process.read[topic, partition]
        process.read[topic, partition] += 1
        process.held.hold(topic.wire, partition, place, FakeEvent())
        positioned = Positioned(topic, partition, place, self.log[topic, partition][place])
        self._carry(process, process.join.accept(positioned))

    def _do_open(self, argument: tuple[Stage, int]) -> None:
        process, generation = self.processes[argument[0]], argument[1]
        process.openings.remove(generation)
        assert isinstance(process.join, DesignJoin)
        memory: list[list[Any]] = [[] for _ in range(count_blocks(self.recipe))]
        probes = self._probes(generation)
        self._carry(process, process.join.open(generation, memory, time_is_up=generation == self._end_at, probes=probes))

    def _probes(self, generation: int) -> dict[str, int]:
        """What memory would have a generation play again, by the closings that it may see."""
        settings, schedule = self.recipe.memory, Schedule(self.recipe.schedule)
        newest = schedule.memory_generation(generation)
        if not settings.enabled or newest is None:
            return {}
        standing: dict[str, Candidate] = {}
        for record in self.records(Topic.GENERATION_CLOSED):
            if isinstance(record, GenerationClosed) and record.generation <= newest:
                found: list[tuple[int, Any]] = [(record.generation, one) for one in record.designs if one.valid]
                found += [(one.generation, one) for one in record.probes if one.plays or one.evicted]
                for born, one in found:
                    kind = "" if one.evicted else HARD if one.win_rate < settings.negative[0] else BEST
                    easy = one.win_rate > settings.negative[1]
                    standing[one.env_id] = Candidate(
                        one.env_id, "" if easy else kind, born, one.win_rate, one.regret, measured=record.generation
                    )
        most = settings.probe_environments * self.recipe.schedule.memory_lag
        return choose_probes([list(standing.values())], settings, most)

    def _do_work(self, record: Record) -> None:
        self._work.remove(record)
        answers = answer(record, self.shares)
        if not self._ordered:
            self._random.shuffle(answers)
        for one in answers:
            self.write(one)

    def _do_begin(self, record: RolloutRequested) -> None:
        """A worker takes the newest policy; seldom it dies, and the unit is played again by whatever is newest then."""
        if self._random.random() > 0.1:
            self._work.remove(record)
        answers = answer(record, self.shares, self._newest)
        self._random.shuffle(answers)
        self._begun.append((record, self._newest, answers))

    def _do_deliver(self, unit: tuple[RolloutRequested, int, list[Record]]) -> None:
        for _ in range(self._random.randint(1, len(unit[2]))):
            self.write(unit[2].pop())
        if not unit[2]:
            self._begun.remove(unit)

    def _carry(self, process: Process, outputs: Outputs) -> None:
        for emit in outputs.records:
            assert isinstance(emit, Emit)
            self.write(emit.record, emit.unit)
        process.held.finish(outputs.finished)
        process.openings += outputs.openings
        for topic, partition in self.log:
            position = process.held.commit_position(topic.wire, partition)
            if topic in SPECS[process.stage].inputs and position is not None and self._random.random() < 0.7:
                self._committed[f"{process.stage.value}:{topic.wire}", partition] = position

    def _commit(self, stage: Stage, topic: Topic, partition: int) -> int:
        live = self.processes[stage].held.commit_position(topic.wire, partition)
        return live if live is not None else self._committed.get((f"{stage.value}:{topic.wire}", partition), 0)

    def _start(self, stage: Stage) -> Process:
        """A process as after kill -9: its past read from the log, its inputs again from the last commit."""
        process = Process(stage, _make_join(stage, self.run_id, self.recipe))
        past = []
        for (topic, partition), records in self.log.items():
            if topic in SPECS[stage].control_topics(self.recipe) + SPECS[stage].own_work:
                process.known[topic, partition] = len(records)
                past += [Positioned(topic, partition, place, record) for place, record in enumerate(records)]
            if topic in SPECS[stage].inputs:
                process.read[topic, partition] = self._committed.get((f"{stage.value}:{topic.wire}", partition), 0)
        self._carry(process, process.join.recover(past))
        return process


def _make_join(stage: Stage, run_id: str, recipe: Recipe) -> Join:
    match stage:
        case Stage.DESIGN:
            return DesignJoin(run_id, recipe, DOCUMENTS)
        case Stage.ROLLOUT:
            return FreeRolloutJoin(run_id, recipe) if recipe.schedule.kind == "free" else RolloutJoin(run_id, recipe)
        case Stage.SCORE:
            return ScoreJoin(run_id, recipe)
        case Stage.BATCH:
            return FreeBatchJoin(run_id, recipe) if recipe.schedule.kind == "free" else BatchJoin(run_id, recipe)


def _samples(batch: BatchReady) -> list[tuple[str, str, float, int, int]]:
    return [(one.sample_id, one.role, one.advantage, one.policy_version, one.lag) for one in batch.samples]


def ended_schedule(world: World) -> Schedule:
    """The schedule that the run had in the end."""
    schedule = Schedule(world.recipe.schedule)
    for record in world.records(Topic.RUN_ENDING):
        assert isinstance(record, RunEnding)
        schedule = schedule.ended_at(record.last_generation)
    return schedule
