"""A whole run of the free schedule on the real parts: exact, within its bounds, stored as the log has it, a worker killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.chaos.evidence import read_evidence
from infra.cli.app import run_app
from infra.clickhouse import connect
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.report.queries import lag_limits, read_run
from infra.runs import read_recipe
from schemas.process import BrokerSettings
from schemas.train import AGENT

pytestmark = pytest.mark.integration
LIMIT_S = 450.0
SMALLER = {
    "partitions": 12,  # of the shared broker
    "schedule.kind": "free",
    "schedule.interval": 2,
    "schedule.delay": 2,
    "schedule.max_lag_agent": 1,
    "design.environments": 4,
    "design.per_document": 2,
    "rollout.units": 4,
    "processes.rollout_workers": 2,
}


def test_a_free_run_ends_exact_and_within_its_bounds_though_a_worker_is_killed(
    broker: LocalBroker, store: LocalStore, run_id: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "infra.cli", "run", "tiny", "--id", run_id, "--dir", str(folder)]
    command += ["--broker", broker.address, "--store", store.dsn]
    command += [word for key, value in SMALLER.items() for word in ("--set", f"{key}={value}")]
    with (tmp_path / "out.log").open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    try:
        kill_a_player(folder, running)
        assert running.wait(LIMIT_S) == 0, told(folder, tmp_path)
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(60)
    assert run_app(["chaos", "--check", run_id, "--broker", broker.address, "--store", store.dsn]) == 0

    evidence = read_evidence(BrokerSettings(address=broker.address), run_id)
    assert evidence.started is not None
    recipe = read_recipe(evidence.started)
    assert (recipe.schedule.kind, sorted(evidence.batches)) == ("free", [0, 1, 2, 3, 4])
    samples = [(step, one) for step, batch in evidence.batches.items() for one in batch.samples]
    assert all(one.versions.oldest == step - one.lag for step, one in samples)
    assert any(one.role == AGENT for _, one in samples)
    client = connect(store.dsn)
    try:
        facts = read_run(client, run_id)
        assert [(step.stale, step.asked_again) for step in facts.steps] == [
            (evidence.batches[step.step].stale, evidence.batches[step.step].asked_again) for step in facts.steps
        ]
        assert lag_limits(recipe.model_dump()) == {"agent": 1, "designer": 4}
        assert not [alarm for alarm in facts.alarms if alarm.startswith("staleness")]
    finally:
        client.close()


def kill_a_player(folder: Path, running: subprocess.Popen[bytes]) -> None:
    """kill -9 of a rollout worker that has plays in hand: they are played again, by a newer policy where there is one."""
    log, end = folder / "logs" / "work-rollout-0.log", time.monotonic() + LIMIT_S
    while time.monotonic() < end and running.poll() is None:
        text = log.read_text() if log.exists() else ""
        begun = re.findall(r"\bpid=(\d+)", text)
        if begun and "policy loaded" in text:
            os.kill(int(begun[-1]), signal.SIGKILL)
            return
        time.sleep(0.05)
    raise AssertionError(f"no rollout worker had a policy to play with:\n{told(folder, folder.parent)}")


def told(folder: Path, tmp_path: Path) -> str:
    logs = "\n".join(f"{log.name}: {log.read_text()[-800:]}" for log in sorted((folder / "logs").glob("*.log")))
    return f"{(tmp_path / 'out.log').read_text()[-2000:]}\n{logs}"
