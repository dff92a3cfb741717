"""`spade work`, `spade stream`, `spade train`: one stage of a run, on any machine that reaches its broker.

Each waits for the run's first record, takes its settings from there, works until the run has finished and exits 0. The same
commands are what `spade run` starts as its children.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra import metricports
from infra.cli import options
from infra.cli.interrupts import cleanup, stoppable
from infra.metricports import FIRST_FREE
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from schemas.process import ProcessContext


class WorkStage(StrEnum):
    """Pools of workers."""

    DESIGN = "design"
    VALIDATE = "validate"
    ROLLOUT = "rollout"
    MEMORY = "memory"


class StreamStage(StrEnum):
    """Faust stages."""

    DESIGN = "design"
    ROLLOUT = "rollout"
    SCORE = "score"
    BATCH = "batch"


def work(
    stage: Annotated[WorkStage, typer.Argument(help="Which pool this worker joins.")],
    processes: Annotated[int, typer.Option(min=1, max=256, help="Workers to start here.")] = 1,
    broker: options.Broker = "",
    store: options.Store = "",
    run: options.RunId = "",
    state_dir: options.StateDir = "",
    log_json: options.LogJson = False,
    metrics_port: options.MetricsPort = FIRST_FREE,
) -> None:
    """Work in one pool of a run: design, validate, rollout or memory. Add workers on any machine at any time."""
    context = options.stage_context(
        broker,
        store,
        run,
        state_dir,
        log_json=log_json,
        metrics_port=metrics_port,
        needs_store=stage is WorkStage.MEMORY,
    )
    if processes > 1:
        _supervise([("work", str(stage))] * processes, context)
    else:
        _enter(f"work-{stage}", context, lambda: _worker(stage)(context))


def stream(
    stage: Annotated[StreamStage | None, typer.Argument(help="One stage; without it all four, a process each.")] = None,
    broker: options.Broker = "",
    store: options.Store = "",
    run: options.RunId = "",
    state_dir: options.StateDir = "",
    log_json: options.LogJson = False,
    metrics_port: options.MetricsPort = FIRST_FREE,
) -> None:
    """Run the stream processors (Faust): design, rollout, score, batch."""
    needs_store = stage in (None, StreamStage.DESIGN)
    context = options.stage_context(
        broker, store, run, state_dir, log_json=log_json, metrics_port=metrics_port, needs_store=needs_store
    )
    if stage is None:
        _supervise([("stream", str(one)) for one in StreamStage], context)
    else:
        _enter(f"stream-{stage}", context, lambda: _streams(str(stage), context))


def train(
    processes: Annotated[
        int,
        typer.Option(
            min=0, max=1024, help="Processes that share each step; 0: as the recipe says. A checkpoint fits any number."
        ),
    ] = 0,
    broker: options.Broker = "",
    store: options.Store = "",
    run: options.RunId = "",
    state_dir: options.StateDir = "",
    log_json: options.LogJson = False,
    metrics_port: options.MetricsPort = FIRST_FREE,
) -> None:
    """Train: one optimizer step a batch, one published policy a step."""
    context = options.stage_context(
        broker, store, run, state_dir, log_json=log_json, metrics_port=metrics_port, needs_store=False
    )

    def enter() -> None:
        from trainer.loop import run as train_run

        train_run(context, processes)

    _enter("train", context, enter)


def child_environment(context: ProcessContext) -> dict[str, str]:
    """The environment that makes a child command use the same broker, store and run; secrets don't reach its command line."""
    broker_file = Path(context.state_dir) / "broker.toml"
    lines = [f"{key} = {_toml(value)}" for key, value in context.broker.model_dump().items()]
    broker_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {
        "SPADE_BROKER": str(broker_file),
        "SPADE_STORE": context.store_dsn,
        "SPADE_RUN": context.run_id,
        "SPADE_STATE_DIR": context.state_dir,
        "SPADE_LOG_JSON": "1" if context.log_json else "0",
        "PYTHONUNBUFFERED": "1",
    }


def _toml(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)  # TOML knows no halves of characters


def _worker(stage: WorkStage) -> Callable[[ProcessContext], None]:
    import importlib

    module = importlib.import_module(f"workers.{stage}")
    entry: Callable[[ProcessContext], None] = module.run
    return entry


def _streams(stage: str, context: ProcessContext) -> None:
    from streams.app import run as stream_run

    stream_run(stage, context)


def _enter(process: str, context: ProcessContext, entry: Callable[[], None]) -> None:
    from infra import telemetry

    telemetry.setup_logging(process, context.run_id, context.log_json)
    port = metricports.serve(process, context.metrics_port, context.run_id)
    log = telemetry.get_logger("infra.cli")
    log.info("started", pid=os.getpid(), broker=context.broker.address, metrics_port=port)
    entry()
    log.info("finished")


def _supervise(commands: list[tuple[str, str]], context: ProcessContext) -> None:
    """Several processes of one command: starts them, restarts what fails, ends with the last."""
    from infra.supervisor import ProcessSpec, Supervisor

    if context.metrics_port > 0:
        raise SettingsError("--metrics-port names one port and there are several processes", "Start them one by one")
    specs = [ProcessSpec(f"{verb}-{stage}-{number}", (verb, stage)) for number, (verb, stage) in enumerate(commands)]
    environment = {**child_environment(context), "SPADE_METRICS_PORT": str(context.metrics_port)}
    metricports.serve("run", context.metrics_port, context.run_id)
    supervisor = Supervisor(Path(context.state_dir) / "logs", environment, notify=options.out.print, may_end=True)
    with stoppable():
        try:
            supervisor.start(specs)
            options.out.print(f"{len(specs)} processes, logs in {supervisor.log_dir}; Ctrl-C stops them")
            while supervisor.running():
                supervisor.poll()
                supervisor.clock.sleep(0.2)
        finally:
            with cleanup():
                supervisor.stop()
