"""A run in one process, strictly in turn, with a list in place of the log: what the stages cost without Kafka between them.

The same functions as everywhere: the four joins, the workers' work, the gate, the jail, the trainer with its DeepSpeed engine,
checkpoints and policies. In: a recipe without memory, a folder. Out: the run's records, each stamped when it was written, and the
final policy's digest. Since what decides is a function of the records alone, it ends in the same weights as the run over Kafka.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from infra.actions import action_form
from infra.dialects import recipe_dialect
from infra.kafka import partition_of, unit_partition
from infra.policystore import PolicyStore
from infra.runs import Run, find_folder, tokenizer_digest
from schemas import ids
from schemas.common import Record, Reference
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import RunStarted
from schemas.settings import Recipe
from schemas.topics import BY_RECORD, Topic, key_of
from schemas.train import PolicyPublished
from streams.design import DesignJoin
from streams.slots import count_blocks
from streams.stage import Join, Outputs, Positioned, Stage
from streams.stages import SPECS
from trainer.checkpoint import CheckpointStore
from trainer.loop import Trainer
from workers.design import DesignWork, PooledDesigns
from workers.gate import judge
from workers.policies import make_sampler
from workers.rollout import RolloutWork
from workers.samplers.base import Sampler
from workers.sandbox import open_sandbox
from workers.validate import ValidateWork


class HeldPolicies:
    """Takes the place of workers.policies.PolicyFeed: every version is there already."""

    def __init__(self, store: PolicyStore, sampler: Any, published: dict[int, PolicyPublished]) -> None:
        self._store, self._sampler, self._published = store, sampler, published

    def hold(self, version: int, *, newest: bool = False) -> None:
        """Makes the sampler hold the version."""
        wanted = self._published[version]
        if (self._sampler.policy_version, self._sampler.policy_digest) != (version, wanted.digest):
            self._sampler.load(wanted, self._store.fetch(wanted))


class NoBroker:
    """Takes the place of infra.kafka.BrokerWatch: there is no broker that could go away."""

    def __init__(self, _settings: BrokerSettings) -> None:
        self.away, self.cause = False, ""

    def check(self) -> None:
        """Nothing to ask."""


class OneProcess:
    """Log, stages and workers of one run; to the trainer it is both its reader and its producer."""

    def __init__(self, recipe: Recipe, run_id: str, folder: Path) -> None:
        assert not recipe.memory.enabled  # its selection is a question to the store
        self.records: list[Record] = []
        self._log: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self._pending: deque[Positioned] = deque()
        self._unread: list[Positioned] = []
        self._published: dict[int, PolicyPublished] = {}
        started = RunStarted(
            run_id=run_id,
            event_id=ids.event_id("run-started", run_id),
            created_at=time.time(),
            recipe_json=recipe.model_dump_json(),
            recipe_name=recipe.name,
            seed=recipe.seed,
            steps=recipe.schedule.steps,
            policy_place=str(folder / "policies"),
            code_digest="",
            corpus_digest="",
            tokenizer_digest=tokenizer_digest(find_folder(recipe.model.path)),
            dialect=recipe.model.dialect,
        )
        self.run = Run(started=started, recipe=recipe)
        self._folder = folder
        self._joins: dict[Stage, Join] = {stage: SPECS[stage].make_join(self.run) for stage in Stage}
        self._open_work(recipe)

    def _open_work(self, recipe: Recipe) -> None:
        dialect = recipe_dialect(recipe, find_folder(recipe.model.path))
        store = PolicyStore(self.run.policy_place)
        self._jails = [open_sandbox(recipe.sandbox.mode) for _ in range(2)] + [open_sandbox("fresh")]
        designer, player = self.make_designer(recipe), make_sampler(recipe, lambda: False)
        held = [HeldPolicies(store, sampler, self._published) for sampler in (designer, player)]
        rollout = recipe.rollout
        decide = partial(judge, form=action_form(recipe.model.dialect))
        validate = ValidateWork(self._jails[0], self._jails[2], self, rollout.max_turns, rollout.tries, decide)  # type: ignore[arg-type] # what it asks of a fetcher
        design = DesignWork(designer, held[0], dialect)  # type: ignore[arg-type] # what it asks of a feed
        self._work: dict[Topic, Any] = {
            Topic.DESIGN_REQUESTED: PooledDesigns() if recipe.is_pooled else design,
            Topic.ENV_PROPOSED: validate,
            Topic.AUDIT_REQUESTED: validate,
            Topic.ROLLOUT_REQUESTED: RolloutWork(player, held[1], self._jails[1], dialect, rollout, lambda: False),  # type: ignore[arg-type] # as above
        }

    def make_designer(self, recipe: Recipe) -> Sampler:
        """What writes designs; a test may let something else write them."""
        return make_sampler(recipe, lambda: False)

    def train(self) -> str:
        """The whole run; the digest of its last policy."""
        for join in self._joins.values():
            self._carry(join, join.recover([]))
        checkpoints = CheckpointStore(self._folder / "checkpoints")
        try:
            with (
                mock.patch("trainer.loop.fetch", lambda _broker, references: self.fetch(references)),  # the log is a list
                mock.patch("trainer.loop.BrokerWatch", NoBroker),
            ):
                Trainer(ProcessContext(), self.run, self, self, checkpoints, threading.Event()).run()  # type: ignore[arg-type] # reader and producer
        finally:
            for jail in self._jails:
                jail.close()
        return self._published[max(self._published)].digest

    # --- what the trainer asks of its reader and its producer --------------------------------------------------------------

    def catch_up(self) -> list[tuple[Topic, int, int, Record]]:
        """What was written since the last question."""
        found, self._unread = self._unread, []
        return [(place.topic, place.partition, place.offset, place.record) for place in found]

    def poll(self, _timeout_s: float) -> list[tuple[Topic, int, int, Record]]:
        """Has everything done that can be done, then as `catch_up`: in turn means that the trainer waits for all of it."""
        while self._pending:
            self._dispatch(self._pending.popleft())
        return self.catch_up()

    def send_all(self, pairs: Sequence[tuple[Topic, Record]]) -> None:
        """Writes records."""
        for _, record in pairs:
            self._write(record)

    def fetch(self, references: Sequence[Reference]) -> dict[str, Record]:
        """Records by reference."""
        return {one.id: self._log[one.topic, one.partition][one.offset] for one in references}

    # --- the list -----------------------------------------------------------------------------------------------------------

    def _write(self, record: Record, unit: tuple[int, int] | None = None) -> None:
        record = msgspec.structs.replace(record, created_at=time.time())
        topic = BY_RECORD[type(record)]
        count = self.run.recipe.partitions
        partition = unit_partition(*unit, count) if unit else partition_of(key_of(record), count)
        places = self._log[topic.wire, partition]
        placed = Positioned(topic, partition, len(places), record)
        places.append(record)
        self.records.append(record)
        self._pending.append(placed)
        self._unread.append(placed)
        if isinstance(record, PolicyPublished):
            self._published[record.version] = record

    def _dispatch(self, placed: Positioned) -> None:
        for stage, join in self._joins.items():
            if placed.topic in SPECS[stage].control:
                self._carry(join, join.learn(placed))
            if placed.topic in SPECS[stage].inputs:
                self._carry(join, join.accept(placed))
        work = self._work.get(placed.topic)
        if work is not None:
            self.send_all(work.run(placed.record, placed.reference))

    def _carry(self, join: Join, outputs: Outputs) -> None:
        for emit in outputs.records:
            self._write(emit.record, emit.unit)
        for generation in outputs.openings:
            assert isinstance(join, DesignJoin)
            lines: list[list[Any]] = [[] for _ in range(count_blocks(self.run.recipe))]
            self._carry(join, join.open(generation, lines, time_is_up=False))
