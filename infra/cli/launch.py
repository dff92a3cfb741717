"""A run from its first record to its end: topics, migrations, the record, processes, supervision; and how it is taken up again.

Called by `spade run` and `spade demo`, in the main thread. What it starts it ends, also on Ctrl-C and on an error; after a kill
-9 the kernel ends it. A run that stopped goes on by `recall` and `supervise`: the log, the newest checkpoint and the positions of
the groups say where.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from infra import metricports
from infra.cli.interrupts import cleanup
from infra.cli.progress import Progress
from infra.cli.rundir import Notes, mark_finished, write_notes
from infra.cli.services import Say, Services, guard, outlast, same_services, services
from infra.cli.stages import StreamStage, child_environment
from infra.corpus.pool import recipe_digest
from infra.kafka import BrokerWatch
from infra.metricports import FIRST_FREE
from infra.runs import Run, await_run, code_digest, find_folder, new_run_id, parse_recipe, read_runs, start_run, tokenizer_digest
from infra.supervisor import ProcessSpec, Supervisor
from schemas.errors import SettingsError, StageTimeoutError
from schemas.process import ProcessContext
from schemas.run import RunFinished
from schemas.settings import Recipe

__all__ = ["Say", "Services", "prepare", "recall", "same_services", "services", "supervise"]
DRAIN_LIMIT_S = 180.0  # from the run's last record until every process, the memory sink too, has ended


def prepare(
    recipe: Recipe, where: Services, run_dir: Path, say: Say, run_id: str = "", *, forked_from: str = "", forked_at: int = -1
) -> Run:
    """Makes topics and tables where they are missing, and writes the run's first record, under a fresh id unless one is given.

    Raises SettingsError where the log holds a run of that id.
    """
    limit = recipe.processes.restarts
    outlast(where, limit, say, lambda: make_tables(recipe, where))
    if run_id and run_id in outlast(where, limit, say, lambda: read_runs(where.broker)[0]):
        raise SettingsError(
            f"{where.broker.address} holds a run {run_id} already",
            "Name another --id, or go on with it by --resume and its folder",
        )
    run_id = run_id or new_run_id(recipe.name)
    notes = Notes(run_id=run_id, recipe_json=recipe.model_dump_json(), forked_from=forked_from, forked_at=forked_at)
    notes = noted_again(notes, where)
    write_notes(run_dir, notes)
    return outlast(where, limit, say, lambda: _begun(notes, recipe, where, run_dir))


def recall(notes: Notes, where: Services, run_dir: Path, say: Say) -> Run:
    """The run of a folder, by its first record; what a kill kept from being written before it is written now.

    Raises SettingsError where folder, corpus or tokenizer are no longer those that the run began with.
    """
    recipe = parse_recipe(notes.recipe_json, notes.run_id)

    def find() -> Run:
        make_tables(recipe, where)
        return _begun(notes, recipe, where, run_dir)

    run = outlast(where, recipe.processes.restarts, say, find)
    began, place = run.started, policy_place(run_dir)
    fix = "Put back what was there, or begin a new run from a policy of this one with --fork"
    if began.policy_place != place:
        raise SettingsError(
            f"run {run.run_id} began in {Path(began.policy_place).parent}, not in {run_dir}", "Move the folder back"
        )
    if tokenizer_digest(find_folder(run.recipe.model.path)) != began.tokenizer_digest:
        raise SettingsError(f"the tokenizer in model.path ({run.recipe.model.path}) is not the one that the run began with", fix)
    if began.corpus_digest and recipe_digest(run.recipe, find_folder(run.recipe.corpus.path)) != began.corpus_digest:
        raise SettingsError(f"the corpus in {run.recipe.corpus.path} is not the one that the run began with", fix)
    if code_digest() != began.code_digest:
        say("note: this is not the code that the run began with; what follows may differ from what that code would have done")
    return run


def noted_again(notes: Notes, where: Services) -> Notes:
    """The notes with the services as they are now, and this process as the supervisor."""
    return msgspec.structs.replace(
        notes,
        own=tuple(name for name, _ in where.own),
        broker=str(Path(where.named_broker).resolve()) if where.named_broker.endswith(".toml") else where.named_broker,
        store="" if where.named_store and urlsplit(where.named_store).password else where.named_store,
        pid=os.getpid(),
    )


def make_tables(recipe: Recipe, where: Services) -> None:
    """Makes topics and tables where they are missing."""
    from infra.migrate import migrate
    from infra.topics import create_topics

    create_topics(where.broker, partitions=recipe.partitions)
    migrate(where.store_dsn)


def policy_place(run_dir: Path) -> str:
    """Where a run's policies are published."""
    return str((run_dir / "policies").resolve())


def _begun(notes: Notes, recipe: Recipe, where: Services, run_dir: Path) -> Run:
    """The run whose first record the log holds, or that record written now."""
    context = context_of(where, run_dir, notes.run_id)
    if notes.run_id in read_runs(where.broker)[0]:
        return await_run(context)
    return start_run(
        recipe,
        context,
        policy_place(run_dir),
        forked_from=notes.forked_from,
        forked_at=notes.forked_at,
    )


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
    """Starts the run's processes and follows it to its end; its last record. A run that has finished already is drained only.

    Raises SupervisorError where a process or service fails too often, BrokerError where the broker is away for too long,
    StageTimeoutError where the run stands still for `stall_limit_s`.
    """
    context = context_of(where, run_dir, run.run_id)
    metricports.serve("run", 0 if os.environ.get("SPADE_METRICS_PORT") == "0" else FIRST_FREE, run.run_id)
    limit = run.recipe.processes.restarts
    guards = guard(where, limit, say)
    supervisor = Supervisor(run_dir / "logs", child_environment(context), limit, notify=say, guards=guards)
    try:
        with outlast(where, limit, say, lambda: _followed(where, run.run_id, say)) as progress:
            specs = process_specs(run.recipe)
            supervisor.start(specs)
            say(f"run {run.run_id}: {len(specs)} processes started, their logs are in {supervisor.log_dir}")
            watch = BrokerWatch(where.broker)
            while progress.finished is None:
                progress.poll(0.2)
                supervisor.poll()
                watch.check()
                if progress.silent_s() > stall_limit_s:
                    raise StageTimeoutError(
                        f"run {run.run_id} has stood still for {stall_limit_s:.0f} s; the last event was: {progress.last_event}",
                        f"Look at the logs in {supervisor.log_dir}",
                    )
            _drain(supervisor, say)
            mark_finished(run_dir)
            return progress.finished
    finally:
        with cleanup():
            supervisor.stop()


def _followed(where: Services, run_id: str, say: Say) -> Progress:
    """The run's progress up to now, told in one line."""
    progress = Progress(where.broker, run_id, say)
    try:
        progress.pass_over()
    except BaseException:
        progress.close()
        raise
    return progress


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
