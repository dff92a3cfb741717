"""The pipeline's cost: asynchronous against strictly in turn, and the log against the same functions in one process.

Three runs of one recipe, one after another on one machine: `overlapped` by the default schedule, `in turn` with neither lag nor
lead, both with every stage a process over Kafka; `one process`, in turn too, with a list in place of the log (oneprocess.py).
Read from the records' own times, between the first generation's closed slots and the last finished step: no start counts.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.cli.options import read_recipe
from infra.kafka import ControlReader
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from schemas.common import Record
from schemas.design import SlotsClosed
from schemas.process import BrokerSettings
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import StepFinished
from tests.bench.oneprocess import OneProcess
from tests.bench.table import Row

LIMIT_S = 1200
COMMON: dict[str, Any] = {
    "schedule.steps": 8,
    "design.environments": 16,
    "design.units": 1,
    "rollout.plain_plays": 8,
    "rollout.hint_plays": 8,
    "rollout.seeds": 8,
    "rollout.units": 1,
    "memory.enabled": False,
}
IN_TURN: dict[str, Any] = {"schedule.lag": 0, "schedule.lead": 0, "schedule.memory_lag": 1}
_BUSY = re.compile(r"(?:plays finished|designs written).*?\bseconds\W+([\d.]+)")


@dataclass(frozen=True)
class Timing:
    """One run: seconds of its window, of them the trainer's waiting and the samplers' work; the last policy."""

    run_id: str
    window_s: float
    trainer_wait_s: float
    designer_busy_s: float
    player_busy_s: float
    steps: int
    digest: str


def measure(small: bool = False) -> dict[str, Timing]:
    """The three runs. Blocks for minutes."""
    sizes = {"schedule.steps": 3, "design.environments": 4} if small else {}
    with tempfile.TemporaryDirectory(prefix="spade-bench-") as name:
        folder = Path(name)
        broker, store = LocalBroker.start(folder / "broker"), LocalStore.start(folder / "store")
        try:
            overlapped = run_over_kafka(folder / "overlapped", COMMON | sizes, broker.address, store.dsn)
            in_turn = run_over_kafka(folder / "in-turn", COMMON | sizes | IN_TURN, broker.address, store.dsn)
        finally:
            store.stop()
            broker.stop()
        alone = run_alone(read_recipe("tiny", as_options(COMMON | sizes | IN_TURN)), in_turn.run_id, folder / "alone")
    return {"overlapped": overlapped, "in turn": in_turn, "one process": alone}


def as_options(values: dict[str, Any]) -> list[str]:
    """KEY=VALUE, as `--set` takes them."""
    return [f"{key}={str(value).lower()}" for key, value in values.items()]


def run_over_kafka(folder: Path, values: dict[str, Any], address: str, dsn: str) -> Timing:
    """`spade run tiny` with these values, and what its records and logs tell."""
    options = [part for option in as_options(values) for part in ("--set", option)]
    command = [sys.executable, "-P", "-m", "infra.cli", "run", "tiny", "--dir", str(folder), "--broker", address, "--store", dsn]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    found = re.search(r"run (\S+) is complete", done.stdout)
    assert found, done.stdout
    with ControlReader(
        BrokerSettings(address=address), [Topic.SLOTS_CLOSED, Topic.STEP_FINISHED, Topic.POLICY_PUBLISHED], found[1]
    ) as reader:
        records = [entry[3] for entry in reader.catch_up()]
    logs = {
        pool: "".join(log.read_text() for log in (folder / "logs").glob(f"work-{pool}-*.log")) for pool in ("design", "rollout")
    }
    busy = {pool: sum(float(seconds) for seconds in _BUSY.findall(text)) for pool, text in logs.items()}
    return timing(records, busy["design"], busy["rollout"])


def run_alone(recipe: Recipe, run_id: str, folder: Path) -> Timing:
    """The same run, by its recipe and its id, in this process."""
    folder.mkdir()
    run = OneProcess(recipe, run_id, folder)
    run.train()
    return timing(run.records, 0.0, 0.0)


def timing(records: list[Record], designer_busy_s: float, player_busy_s: float) -> Timing:
    """What the records of one run tell."""
    slots = [record.created_at for record in records if isinstance(record, SlotsClosed)]
    steps = {record.step: record for record in records if isinstance(record, StepFinished)}
    published = {getattr(record, "version", -1): getattr(record, "digest", "") for record in records}
    began, ended = min(slots), max(record.created_at for record in steps.values())
    waits = [record.seconds.get("wait", 0.0) for step, record in steps.items() if step > 0]  # the first waits for the start
    return Timing(
        records[0].run_id, ended - began, sum(waits), designer_busy_s, player_busy_s, len(steps), published[max(published)]
    )


def pipeline_rows(found: Mapping[str, Timing]) -> list[Row]:
    """The lines of the table."""
    overlapped, in_turn, alone = found["overlapped"], found["in turn"], found["one process"]
    return [
        Row("wall clock, overlapped / strictly in turn", overlapped.window_s / in_turn.window_s, 1),
        Row("share of the log: (in turn - one process) / in turn", (in_turn.window_s - alone.window_s) / in_turn.window_s, 0.1),
        Row("trainer idle, overlapped", overlapped.trainer_wait_s / overlapped.window_s),
        Row("trainer idle, in turn", in_turn.trainer_wait_s / in_turn.window_s),
        Row("rollout worker idle, overlapped", 1 - overlapped.player_busy_s / overlapped.window_s),
        Row("rollout worker idle, in turn", 1 - in_turn.player_busy_s / in_turn.window_s),
        Row("design worker idle, overlapped", 1 - overlapped.designer_busy_s / overlapped.window_s),
        Row("final weights over Kafka and in one process differ", float(in_turn.digest != alone.digest), 0),
    ]
