"""A run from its recipe to its end: services, topics, migrations, the first record, processes, supervision.

Called by `spade run` and `spade demo`, in the main thread. What it starts it ends, also on Ctrl-C and on an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.cli.interrupts import cleanup
from infra.cli.options import broker_settings, standing
from infra.cli.progress import Progress
from infra.cli.stages import StreamStage, child_environment
from infra.runs import Run, new_run_id, start_run
from infra.supervisor import ProcessSpec, Supervisor
from schemas.errors import StageTimeoutError
from schemas.run import RunFinished
from schemas.settings import BrokerSettings, ProcessContext, Recipe

DRAIN_LIMIT_S = 180.0  # from the run's last record until every process, the memory sink too, has ended
Say = Callable[[str], None]


@dataclass(frozen=True)
class Services:
    """Where broker and store are reached."""

    broker: BrokerSettings
    store_dsn: str


@contextlib.contextmanager
def services(broker: str, store: str, run_dir: Path, say: Say, *, own: bool = False) -> Iterator[Services]:
    """Those that are named, else those of `spade up`, else (or where `own`) local ones in the run's folder, ended on exit."""
    named = None if own else broker_settings(broker)
    dsn = "" if own else store or standing().get("store", "")
    with contextlib.ExitStack() as stack:
        if named is None:
            named = BrokerSettings(address=stack.enter_context(_own_broker(run_dir / "broker", say)))
        else:
            from infra.kafka import check_broker

            check_broker(named)
        if not dsn:
            dsn = stack.enter_context(_own_store(run_dir / "store", say))
        yield Services(broker=named, store_dsn=dsn)


@contextlib.contextmanager
def _own_broker(folder: Path, say: Say) -> Iterator[str]:
    from infra.local.broker import LocalBroker

    say("starting the broker (Apache Kafka, one KRaft node) ...")
    service = LocalBroker.start(folder)
    try:
        yield service.address
    finally:
        with cleanup():
            service.stop()


@contextlib.contextmanager
def _own_store(folder: Path, say: Say) -> Iterator[str]:
    from infra.local.store import LocalStore

    say("starting the store (ClickHouse's embedded engine) ...")
    service = LocalStore.start(folder)
    try:
        yield service.dsn
    finally:
        with cleanup():
            service.stop()


def prepare(recipe: Recipe, where: Services, run_dir: Path, run_id: str = "") -> Run:
    """Makes topics and tables where they are missing, and writes the run's first record, under a fresh id unless one is given."""
    from infra.migrate import migrate
    from infra.topics import create_topics

    create_topics(where.broker, partitions=recipe.partitions)
    migrate(where.store_dsn)
    run_id = run_id or new_run_id(recipe.name)
    return start_run(recipe, context_of(where, run_dir, run_id), str((run_dir / "policies").resolve()))


def context_of(where: Services, run_dir: Path, run_id: str) -> ProcessContext:
    """What the run's processes are told."""
    return ProcessContext(broker=where.broker, store_dsn=where.store_dsn, run_id=run_id, state_dir=str(run_dir.resolve()))


def process_specs(recipe: Recipe) -> list[ProcessSpec]:
    """The processes of a run on one machine: stream stages, workers by pool, the trainer."""
    pools = {
        "design": recipe.processes.design_workers,
        "validate": recipe.processes.validate_workers,
        "rollout": recipe.processes.rollout_workers,
        "memory": recipe.processes.memory_workers,
    }
    specs = [ProcessSpec("train", ("train",))]
    for stage in StreamStage:
        specs += [ProcessSpec(f"stream-{stage}-{n}", ("stream", str(stage))) for n in range(recipe.processes.stream_workers)]
    for pool, workers in pools.items():
        specs += [ProcessSpec(f"work-{pool}-{n}", ("work", pool)) for n in range(workers)]
    return specs


def supervise(run: Run, where: Services, run_dir: Path, say: Say, *, stall_limit_s: float = 1800.0) -> RunFinished:
    """Starts the run's processes and follows it to its end; its last record.

    Raises SupervisorError where a process fails too often, StageTimeoutError where the run stands still for `stall_limit_s`.
    """
    context = context_of(where, run_dir, run.run_id)
    supervisor = Supervisor(run_dir / "logs", child_environment(context), run.recipe.processes.restarts, notify=say)
    try:
        with Progress(where.broker, run.run_id, say) as progress:
            specs = process_specs(run.recipe)
            supervisor.start(specs)
            say(f"run {run.run_id}: {len(specs)} processes started, their logs are in {supervisor.log_dir}")
            while progress.finished is None:
                progress.poll(0.2)
                supervisor.poll()
                if progress.silent_s() > stall_limit_s:
                    raise StageTimeoutError(
                        f"run {run.run_id} has stood still for {stall_limit_s:.0f} s; the last event was: {progress.last_event}",
                        f"Look at the logs in {supervisor.log_dir}",
                    )
            _drain(supervisor, say)
            return progress.finished
    finally:
        with cleanup():
            supervisor.stop()


def store_rest(run: Run, where: Services, run_dir: Path, say: Say) -> None:
    """Brings records that were written after the run's end into the store, by the memory worker itself."""
    context = context_of(where, run_dir, run.run_id)
    supervisor = Supervisor(run_dir / "logs", child_environment(context), restarts=1, notify=say, may_end=True)
    try:
        supervisor.start([ProcessSpec("work-memory-rest", ("work", "memory"))])
        _drain(supervisor, say)
    finally:
        with cleanup():
            supervisor.stop()


def _drain(supervisor: Supervisor, say: Say) -> None:
    supervisor.may_end = True
    end = time.monotonic() + DRAIN_LIMIT_S
    while supervisor.running():
        supervisor.poll()
        if time.monotonic() >= end:
            raise StageTimeoutError(
                f"{', '.join(supervisor.running())} did not end within {DRAIN_LIMIT_S:.0f} s after the run's end",
                f"Look at the logs in {supervisor.log_dir}",
            )
        time.sleep(0.1)
    say("every process has read its input to the end and stopped")
