"""The commands one by one, as a user would on two machines: up, topics, migrate, a run, each process by hand, down."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli.backlog import read_backlog
from infra.cli.launch import Services, prepare
from infra.cli.options import read_recipe
from infra.cli.rundir import Notes, held, write_notes
from infra.local.broker import LocalBroker
from infra.local.processes import born_at
from infra.local.store import LocalStore
from infra.runs import newest_run
from schemas.process import BrokerSettings
from schemas.settings import Recipe

pytestmark = pytest.mark.integration
COMMAND_LIMIT_S = 180
RUN_LIMIT_S = 900
STAGES = [
    ["train"],
    ["stream", "design"],
    ["stream", "rollout"],
    ["stream", "score"],
    ["stream", "batch"],
    ["work", "design"],
    ["work", "validate"],
    ["work", "rollout"],
    ["work", "rollout"],
    ["work", "memory"],
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    spade(tmp_path / "state", "down")


def spade(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "infra.cli", *arguments],
        env=environment(home),
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPADE_") or name == "SPADE_CACHE"}
    return {**kept, "SPADE_STATE": str(home), "COLUMNS": "200"}


def field(output: str, name: str) -> str:
    found = re.search(rf"^{name} +(\S+) +\(process (\d+)", output, re.MULTILINE)
    assert found, output
    return found[1]


def test_processes_started_by_hand_share_a_run_by_address_and_down_leaves_nothing(home: Path, tmp_path: Path) -> None:
    up = spade(home, "up")
    assert up.returncode == 0, up.stderr
    broker = field(up.stdout, "broker")
    pids = [int(pid) for pid in re.findall(r"process (\d+)", up.stdout)]
    assert len(pids) == 2
    assert spade(home, "up").stdout.count(str(pids[0])) == 1  # a second call finds the same ones

    topics = spade(home, "topics", "--broker", broker, "--partitions", "4")
    assert (topics.returncode, "19 topics made" in topics.stdout) == (0, True), topics.stdout + topics.stderr
    migrated = spade(home, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "applied: 1" in migrated.stdout

    store = LocalStore.attach(home / "store")
    assert store is not None
    settings = BrokerSettings(address=broker)
    recipe = read_recipe("tiny", ["schedule.steps=2"])
    run = prepare(recipe, Services(broker=settings, store_dsn=store.dsn), tmp_path / "run", print)
    assert newest_run(settings) == run.run_id

    children = []
    for number, stage in enumerate(STAGES):
        log = (tmp_path / f"{number}-{'-'.join(stage)}.log").open("wb")
        arguments = [*stage, "--broker", broker, "--state-dir", str(tmp_path / "machine")]
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "infra.cli", *arguments], env=environment(home), cwd=tmp_path, stdout=log, stderr=log
        )
        log.close()
        children.append(child)
    try:
        end = time.monotonic() + RUN_LIMIT_S
        codes = [child.wait(timeout=max(end - time.monotonic(), 1)) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    logs = "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in sorted(tmp_path.glob("*.log")))
    assert codes == [0] * len(STAGES), logs

    status = spade(home, "status", "--run", run.run_id)
    assert status.returncode == 0, status.stderr
    assert f"run {run.run_id}: finished" in status.stdout
    groups = {row.group: row.lag for row in read_backlog(settings, run.run_id)}
    assert len(groups) == 8
    assert not any(groups.values()), groups

    again = spade(home, "eval", "--run", run.run_id, "--version", "0", "--limit", "4")
    assert (again.returncode, "written to the log and to the store" in again.stdout) == (0, True), again.stdout + again.stderr
    asked = spade(home, "memory", "--sql", "SELECT policy_version, items FROM evaluations FINAL", "--json")
    assert json.loads(asked.stdout)["rows"] == [{"policy_version": 0, "items": 4}], asked.stdout + asked.stderr
    alone = spade(home, "eval", "--run", run.run_id, "--broker", broker, "--version", "0", "--limit", "4")
    assert (alone.returncode, "`spade work memory` brings it there" in alone.stdout) == (0, True), alone.stdout + alone.stderr
    assert spade(home, "work", "memory", "--run", run.run_id).returncode == 0
    assert not any(row.lag for row in read_backlog(settings, run.run_id))

    down = spade(home, "down")
    assert down.returncode == 0
    assert all(str(pid) in down.stdout for pid in pids)
    assert not any(map(born_at, pids))
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(broker.rpartition(":")[2])), timeout=2).close()
    assert "nothing was up" in spade(home, "down").stdout


def test_a_runs_own_broker_and_store_are_put_up_on_its_folder_and_only_ended_by_down(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_notes(folder, Notes(run_id="r", recipe_json=Recipe().model_dump_json(), own=("broker", "store")))
    up = spade(home, "up", "--run", os.path.relpath(folder, home.parent))
    assert up.returncode == 0, up.stderr
    address = field(up.stdout, "broker")
    broker = LocalBroker.attach(folder / "broker")
    assert broker is not None
    assert broker.address == address
    assert "19 topics made" in spade(home, "topics").stdout
    another = spade(home, "up")
    assert (another.returncode, "are up" in another.stderr) == (2, True), another.stderr
    with held(folder):  # as by a living run
        assert "forgets them" in spade(home, "up", "--run", str(folder)).stdout
        assert "forgotten" in spade(home, "down").stdout
        assert "forgets them" in spade(home, "up", "--run", str(folder)).stdout
        broker.stop()  # as the run's own command does at its end
        assert "none is up" in spade(home, "status").stderr
        assert spade(home, "down", "--wipe").returncode == 2  # what it would remove is a run's
        assert "forgotten" in spade(home, "down").stdout
    assert "ends them" in spade(home, "up", "--run", str(folder)).stdout
    assert spade(home, "down", "--wipe").returncode == 2
    assert spade(home, "down").stdout.count("process") == 2
    assert LocalBroker.attach(folder / "broker") is None
    assert (folder / "broker" / "log").is_dir()


def test_unreachable_broker_and_store_and_a_taken_port_are_one_line_each(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = [
            (["up", "--broker-port", str(port)], f"port {port} on 127.0.0.1 is taken"),
            (["run", "tiny", "--broker", "127.0.0.1:1", "--dir", str(home.parent / "r")], "can't reach broker 127.0.0.1:1"),
            (["migrate", "--store", "clickhouse://spade@127.0.0.1:1/spade"], "can't reach store 127.0.0.1:1/spade"),
        ]
        for arguments, message in cases:
            answer = spade(home, *arguments)
            assert answer.returncode == 3, (arguments, answer.stderr)
            errors = [line for line in answer.stderr.splitlines() if line.startswith("error: ")]
            assert len(errors) == 1
            assert message in errors[0]
            assert "Traceback" not in answer.stderr


def test_full_disk_refuses_the_run_before_anything_starts(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    script = f"mount -t tmpfs -o size=4m none {small} && exec {sys.executable} -P -m infra.cli run tiny --dir {small}/run"
    answer = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env=environment(tmp_path / "state"),
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert answer.returncode == 5, answer.stderr
    assert re.search(r"error: .*small/run has \d+ MiB free, the run needs \d+", answer.stderr)


@pytest.mark.parametrize("wait_for", ["starting the broker", "processes started"])
def test_ctrl_c_leaves_no_process(wait_for: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "infra.cli", "run", "tiny", "--dir", str(folder)],
        env={**environment(tmp_path / "state"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if wait_for in line:
            break
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait(timeout=COMMAND_LIMIT_S) == 130, rest
    assert "Traceback" not in rest
    end = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def processes_of(folder: Path) -> list[str]:
    """Command lines and environments that name the run's folder: broker, store, children."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append(text[:200].decode(errors="replace"))
    return found
