"""The trainer's process: batch n of the log is optimizer step n, its checkpoint is durable before its policy is published.

In: the run's recipe, its batch-ready and run-ending records, the episodes and proposals that batches point to. Out: checkpoints,
policies, PolicyPublished, StepFinished and at last RunFinished. Called by `spade train`. After a kill at any moment a new process
goes on from the newest checkpoint and tells again what the log lacks; a batch that is in a checkpoint is never trained again.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import msgspec

from infra.kafka import BrokerWatch, ControlReader, RecordProducer, fetch, find_deserted, make_producer, tell_deserted
from infra.policystore import PolicyStore
from infra.report.alarms import ESS_FLOOR
from infra.runs import Run, await_run, find_folder
from infra.telemetry import bind_run, count, get_logger, observe, set_gauge
from schemas import ids
from schemas.common import Record, Reference
from schemas.errors import BrokerError, SettingsError, StageTimeoutError, TrainingError
from schemas.process import ProcessContext
from schemas.run import RunFinished
from schemas.topics import Topic
from schemas.train import BatchReady, StepFinished
from trainer.checkpoint import CheckpointStore, Progress, advance
from trainer.engine import StepOutcome, TrainEngine
from trainer.logbook import TOPICS, Logbook
from trainer.packing import read_trajectories
from trainer.plan import TrainPlan
from trainer.publish import publish
from trainer.team import NewEngine, open_team

POLL_S = 0.2
_log = get_logger(__name__)


class StopRequested(Exception):  # noqa: N818  # no error: SIGTERM or SIGINT asked for a clean stop
    """The process was asked to stop; nothing of the open batch is kept."""


def run(context: ProcessContext, processes: int = 0) -> None:
    """Trains the run until its last batch is trained, or until SIGTERM or SIGINT; then returns.

    `processes`: how many share each step here, in place of the recipe's number; 0: as many as the recipe says.

    Raises StageTimeoutError (no batch within train.batch_deadline_s), TrainingError, ReferenceGoneError, ModelError,
    DiskFullError, PolicyError, BrokerError.
    """
    if not context.state_dir:
        raise SettingsError("the trainer has no state folder for its checkpoints", "Name one with --state-dir")
    started = await_run(context)
    bind_run(started.run_id)
    recipe = started.recipe
    train = recipe.train.model_copy(update={"processes": processes}) if processes else recipe.train
    checkpoints = CheckpointStore(
        Path(context.state_dir) / "checkpoints" / started.run_id, recipe.train.keep_every * recipe.schedule.interval
    )
    with (
        stop_on_signals() as stop,
        ControlReader(context.broker, TOPICS, started.run_id) as reader,
        make_producer(context.broker) as producer,
    ):
        try:
            with open_team(train, Path(context.state_dir) / "logs") as new_engine:
                Trainer(context, started, reader, producer, checkpoints, stop, new_engine).run()
        except StopRequested:
            _log.info("stopped on request")


class Trainer:
    """One run's training, from what the log and the newest checkpoint say."""

    def __init__(
        self,
        context: ProcessContext,
        started: Run,
        reader: ControlReader,
        producer: RecordProducer,
        checkpoints: CheckpointStore,
        stop: threading.Event,
        new_engine: NewEngine = TrainEngine,
    ) -> None:
        self._new_engine = new_engine
        self.broker = context.broker
        self.run_id = started.run_id
        self.recipe = started.recipe
        self.reader, self.producer, self.stop = reader, producer, stop
        self.checkpoints = checkpoints
        self.policies = PolicyStore(started.policy_place)
        self.logbook = Logbook()
        self.progress = Progress(run_id=self.run_id)
        self.origin = Path()
        self.engine: TrainEngine

    def run(self) -> None:
        """Resumes, then trains batch after batch."""
        self.logbook.absorb(self.reader.catch_up(), -1)
        if self.logbook.finished is not None:
            return
        self._resume()
        while True:
            waited = time.monotonic()
            found = self._await_batch()
            if found is None:
                break
            self._step(*found, time.monotonic() - waited)
        self._finish_run()

    def _resume(self) -> None:
        """Brings engine and log to the newest checkpoint; publishes version 0 in a run that has none."""
        first = self.logbook.published.get(0)
        self.origin = self.policies.fetch(first) if first else find_folder(self.recipe.model.path)
        self.engine = self._new_engine(self.origin, self.recipe.train, self.recipe.seed, self.origin)
        kept = self.checkpoints.load(self.run_id)
        if kept is not None:
            self.progress, tensors = kept
            self.engine.load_state(tensors)
            for number in [number for number in self.logbook.batches if number <= self.progress.last]:
                self.logbook.close(number)
        elif any(version > 0 for version in self.logbook.published):
            raise TrainingError(
                f"run {self.run_id} has published policies, but {self.checkpoints.folder} holds no whole checkpoint",
                "Start the trainer with the state folder it had",
            )
        if self.progress.last < 0:
            self._publish(cause="")
            self.origin = self.policies.fetch(self.logbook.published[0])
        if kept is None:
            self.checkpoints.save(self.progress, self.engine.state())
        elif self.progress.finished is not None:
            self._publish(cause=self.progress.finished.causation_id)
            self._tell_step(self.progress.finished)
        _log.info("trainer ready", version=self.progress.version, resumed=kept is not None)

    def _plan(self) -> TrainPlan:
        ending = self.logbook.ending
        return TrainPlan(self.recipe.schedule, ending.last_generation if ending else None)

    def _await_batch(self) -> tuple[BatchReady, Reference] | None:
        """The batch that follows, None after the last one. Raises StageTimeoutError at the recipe's deadline."""
        limit = self.recipe.train.batch_deadline_s
        end, reachable = time.monotonic() + limit, BrokerWatch(self.broker)
        while (number := self._plan().following(self.progress.last)) is not None:
            if number in self.logbook.batches:
                return self.logbook.batches[number]
            self._check_stop()
            reachable.check()
            if time.monotonic() >= end:
                raise StageTimeoutError(
                    f"no batch {number} of run {self.run_id} in {Topic.BATCH_READY.wire} within {limit:.0f} s "
                    f"(the last one trained is {self.progress.last}): {self._who_is_missing()}",
                    "Check that the stream and worker processes run (`spade status`); train.batch_deadline_s is the limit",
                )
            self.logbook.absorb(self.reader.poll(POLL_S), self.progress.last)
        return None

    def _who_is_missing(self) -> str:
        """Which pools nobody works in, for a message."""
        try:
            return tell_deserted(find_deserted(self.broker, self.run_id))
        except BrokerError as problem:
            return problem.cause

    def _step(self, batch: BatchReady, reference: Reference, waited_s: float) -> None:
        """Trains one batch, makes it durable, and tells it."""
        started = time.monotonic()
        # A connection a batch: kafka-python drops a topic that a connection sees for the first time among known ones.
        records = fetch(self.broker, [sample.reference for sample in batch.samples]) if batch.samples else {}
        fetched_s = time.monotonic() - started
        outcome = self._train(batch, records)
        finished = StepFinished(
            run_id=self.run_id,
            event_id=ids.event_id("step", self.run_id, batch.step),
            causation_id=batch.event_id,
            created_at=time.time(),
            step=batch.step,
            drain=batch.drain,
            skipped=outcome.skipped,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            learning_rate=self.recipe.train.learning_rate,
            roles=outcome.roles,
            trained=[] if outcome.skipped else [sample.sample_id for sample in batch.samples],
            seconds={"wait": waited_s, "fetch": fetched_s, **outcome.seconds},
        )
        progress = advance(self.progress, finished, reference, [sample.role for sample in batch.samples])
        if progress.skipped_in_row > self.recipe.train.max_skipped:
            progress = self._restore(progress)
        seconds = dict(finished.seconds)
        with _timed(seconds, "checkpoint"):
            self.checkpoints.save(progress, self.engine.state())
        self.progress = progress
        self.logbook.close(batch.step)
        with _timed(seconds, "publish"):
            self._publish(cause=batch.event_id)
        self._tell_step(msgspec.structs.replace(finished, seconds=seconds))
        self._prune()

    def _prune(self) -> None:
        """Removes the policies that neither open work nor the recipe names."""
        rollout, train = self.recipe.rollout, self.recipe.train
        earlier = rollout.earlier_steps if rollout.earlier_plays else 0
        needed = self._plan().needed_versions(self.progress.last, train.keep_policies, earlier, train.keep_every)
        self.policies.prune(needed)

    def _train(self, batch: BatchReady, records: dict[str, Record]) -> StepOutcome:
        self._plan().check_age(batch)
        trajectories, table = read_trajectories(batch.samples, records)
        return self.engine.train(trajectories, table, self._check_stop)

    def _restore(self, progress: Progress) -> Progress:
        """After too many skipped steps in a row: the weights that last gave a finite step; TrainingError the second time."""
        version = progress.good + 1
        kept = self.checkpoints.load(self.run_id, version)
        if progress.restores_in_row or kept is None:
            raise TrainingError(
                f"{progress.skipped_in_row} steps in a row had a non-finite loss or gradient, the last is step {progress.last}"
                + (f", also with the policy {version} restored" if kept else ""),
                "Lower train.learning_rate or train.max_grad_norm",
            )
        _log.warning("restoring the last good policy", version=version, skipped=progress.skipped_in_row)
        self.engine.load_state(kept[1])
        return replace(progress, skipped_in_row=0, restores_in_row=1)

    def _publish(self, cause: str) -> None:
        """Makes the present version durable and tells it, unless the log has it."""
        version = self.progress.version
        record = publish(
            self.engine, self.policies, self.origin, run_id=self.run_id, version=version, seed=self.recipe.seed, cause=cause
        )
        known = self.logbook.published.get(version)
        if known is not None and known.digest != record.digest:
            raise TrainingError(
                f"policy {version} of run {self.run_id} has digest {record.digest[:16]}, the log has {known.digest[:16]}",
                "Use the state folder, machine kind and train.threads that the run began with",
            )
        if known is None:
            self._send(Topic.POLICY_PUBLISHED, record)
            self.logbook.published[version] = record
        set_gauge("spade_policy_version", version)

    def _tell_step(self, finished: StepFinished) -> None:
        """Sends the step's record unless the log has it."""
        if finished.step in self.logbook.finished_steps:
            return
        self._send(Topic.STEP_FINISHED, finished)
        self.logbook.finished_steps.add(finished.step)
        count("spade_steps_total", outcome="skipped" if finished.skipped else "applied")
        for phase, seconds in finished.seconds.items():
            observe("spade_step_seconds", seconds, phase=phase)
        for role, stats in finished.roles.items():
            set_gauge("spade_loss", stats.loss, role=role)
            set_gauge("spade_effective_sample_share", stats.ess, role=role)
            set_gauge("spade_policy_lag", stats.lag_max, role=role)
            set_gauge("spade_policy_lag_limit", self.recipe.schedule.lag_limit(role), role=role)
        warn_of_drift(finished)
        _log.info(
            "step finished",
            step=finished.step,
            loss=round(finished.loss, 5),
            grad_norm=round(finished.grad_norm, 4),
            samples=len(finished.trained),
            skipped=finished.skipped,
            seconds={phase: round(value, 2) for phase, value in finished.seconds.items()},
        )

    def _finish_run(self) -> None:
        """Tells that the last batch is trained."""
        ending, progress = self.logbook.ending, self.progress
        self._send(
            Topic.RUN_FINISHED,
            RunFinished(
                run_id=self.run_id,
                event_id=ids.event_id("run-finished", self.run_id),
                created_at=time.time(),
                steps=progress.steps,
                drain_steps=progress.drain_steps,
                final_version=progress.version,
                final_digest=self.logbook.published[progress.version].digest,
                agent_samples=progress.agent_samples,
                designer_samples=progress.designer_samples,
                cause=ending.cause if ending else "all steps are trained",
            ),
        )
        _log.info("run finished", version=progress.version)

    def _send(self, topic: Topic, record: Record) -> None:
        self.producer.send_all([(topic, record)])
        count("spade_records_out_total", topic=topic.wire)

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise StopRequested
        self.engine.check()


def warn_of_drift(finished: StepFinished) -> None:
    """A warning for each role whose effective sample size lies below the floor: the report alarms of the same."""
    for role, stats in finished.roles.items():
        if stats.samples and stats.ess < ESS_FLOOR:
            _log.warning(
                "effective sample size below its floor",
                step=finished.step,
                role=role,
                ess=round(stats.ess, 4),
                floor=ESS_FLOOR,
                lag_max=stats.lag_max,
                logratio_max=round(stats.logratio_max, 4),
            )


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - started


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, a second one acts as before; outside the main thread nothing is installed."""
    stop = threading.Event()
    before: dict[int, object] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])  # type: ignore[arg-type]  # what signal.signal gave back

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave back
