"""The jail under blows and over time: a host killed while its jails compute, hundreds of sessions, no free core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.sandbox import EndReason, Limits, Sandbox, SessionEnd, is_infrastructure, launch, open_sandbox
from workers.sandbox.attacks.drill import Traces, descendants, running

pytestmark = pytest.mark.integration

SOURCE = """
class WorkEnv:
    def __init__(self, max_turns=25):
        self.turns = 0
    def reset(self, seed=None):
        self.seed = seed
        return f"seed {seed}", {}
    def step(self, action):
        self.turns += 1
        while action == "spin":
            pass
        if action == "sleep":
            __import__("time").sleep(60)
        if action == "hoard":
            kept = bytearray(1 << 30)
        if action == "fail":
            raise ValueError
        total = sum(value * value for value in range(400_000 if action == "work" else 10))
        return f"{self.seed} {total}", 0.5, False, False, {}
"""
HOST = """
import sys, threading
from workers.sandbox import open_sandbox, Limits
sandbox = open_sandbox("zygote", slots=4)
limits = Limits(cpu_s=100, step_s=100)
sessions = [sandbox.open(sys.argv[1] + f"# {number % 3}", max_turns=3, limits=limits) for number in range(6)]
for session in sessions:
    session.reset(1)
for session in sessions:
    threading.Thread(target=session.step, args=("spin",)).start()
groups = [jail.slot.group for jail in sandbox._live if jail.slot.group]
print("busy", *[str(folder) for group in groups for folder in group.folders.values()], flush=True)
"""
GONE_S = 20.0
STARTS = 25  # of a bare interpreter, which takes some 20 ms on an idle machine


def wait_until_gone(pids: set[int], folders: list[str]) -> float:
    """Seconds until neither a process runs nor a folder is there; GONE_S at most."""
    began = time.monotonic()
    while running(pids) or any(Path(folder).exists() for folder in folders):
        if time.monotonic() - began > GONE_S:
            break
        time.sleep(0.01)
    return time.monotonic() - began


def killed_host() -> tuple[set[int], list[str], float]:
    """A host that is killed while six sessions in three jails compute: its processes, its cgroups, and how long they stayed."""
    host = subprocess.Popen([sys.executable, "-c", HOST, SOURCE], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    try:
        ready, *folders = host.stdout.readline().split()
        assert ready == "busy"
        below = running(descendants(host.pid))
        assert len(below) >= 1 + 3 * 2 + 6  # launcher, nsjail and zygote of each jail, children
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait(10)
        host.stdout.close()
    return below, folders, wait_until_gone(below, folders)


def bare_start() -> float:
    """Seconds that this machine, as busy as it is, takes to start and end an interpreter."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return time.monotonic() - began


def test_host_that_is_killed_while_its_jails_compute_leaves_nothing() -> None:
    before = Traces.now()
    took: list[float] = []
    while len(took) < 3 and (not took or took[-1] > 1):
        floor = bare_start()
        below, folders, seconds = killed_host()
        assert not running(below)
        assert not [folder for folder in folders if Path(folder).exists()]
        took.append(seconds / max(1.0, STARTS * max(floor, bare_start())))
    assert before.left() == []
    assert min(took) <= 1, f"a second, or {STARTS} starts of an interpreter where those take longer; seen {took} times that"


def test_launcher_that_is_killed_takes_its_jails_along_by_their_parent_death_signal_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)"
    program = launch.PROGRAM.read_text()
    assert line in program
    (tmp_path / "launcher.py").write_text(program.replace(line, "pass"))
    found = []
    for changed in (False, True):
        if changed:
            monkeypatch.setattr(launch, "PROGRAM", tmp_path / "launcher.py")
        sandbox = open_sandbox("zygote")
        try:
            with sandbox.open(SOURCE, max_turns=3) as session:
                session.reset(1)
                launcher = sandbox._setup.launcher._process  # type: ignore[attr-defined]
                jails = {jail.pid for jail in sandbox._live}  # type: ignore[attr-defined]
                launcher.kill()
                launcher.wait(10)
                deadline = time.monotonic() + (0.5 if changed else GONE_S)
                while running(jails) and time.monotonic() < deadline:
                    time.sleep(0.01)
                found.append(bool(running(jails)))
                for pid in running(jails):
                    os.kill(pid, signal.SIGTERM)
        finally:
            sandbox.close()
    assert found == [False, True]


def test_five_hundred_sessions_keep_descriptors_cgroups_processes_and_mounts_flat() -> None:
    everything = Traces.now()
    sandbox = open_sandbox("zygote", slots=2)
    try:
        play_some(sandbox, 20)
        before = Traces.now()
        play_some(sandbox, 500)
        after = Traces.now()
        assert after.descriptors.total() <= before.descriptors.total() + 4
        assert after.mounts == before.mounts
        jails = sandbox._live  # type: ignore[attr-defined]
        # the launcher's, zombies too: nsjail, zygote and an ended child of each jail
        assert len(descendants(sandbox._setup.launcher._process.pid)) <= 3 * len(jails) + 2  # type: ignore[attr-defined]
        free = [slot for kept in sandbox._free_slots.values() for slot in kept]  # type: ignore[attr-defined]
        assert len(jails) + len(free) <= 4
    finally:
        sandbox.close()
    assert everything.left() == []


def play_some(sandbox: Sandbox, sessions: int) -> None:
    """Sessions of four sources; each tenth ends by its own fault."""
    for number in range(sessions):
        with sandbox.open(SOURCE + f"# {number // 10 % 4}", max_turns=3) as session:
            session.reset(number)
            if number % 10:
                assert session.step("look").observation.startswith(f"{number} ")
                continue
            with pytest.raises(SessionEnd) as caught:
                session.step("fail")
            assert caught.value.reason is EndReason.ENV_ERROR


@contextmanager
def burners() -> Iterator[None]:
    """Two busy processes for each core, for a minute at most."""
    code = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait(10)


def ends_of(sandbox: Sandbox) -> dict[str, list[str]]:
    """What came of plays of each kind: observations, and the reason of the end."""
    limits = Limits(step_s=0.6, reset_s=0.6, make_s=0.6)
    found: dict[str, list[str]] = {}
    for action in ("look", "work", "spin", "sleep", "hoard", "fail"):
        found[action] = []
        try:
            with sandbox.open(SOURCE, max_turns=9, limits=limits) as session:
                found[action].append(session.reset(5))
                for _ in range(3):
                    found[action].append(session.step(action).observation)
        except SessionEnd as end:
            found[action].append(end.reason)
    return found


def test_a_machine_without_a_free_core_changes_no_verdict() -> None:
    sandbox = open_sandbox("zygote")
    try:
        quiet = ends_of(sandbox)
        with burners():
            loaded = ends_of(sandbox)
    finally:
        sandbox.close()
    assert [len(quiet[action]) for action in ("look", "work")] == [4, 4]
    assert [quiet[action][-1] for action in ("spin", "sleep", "hoard", "fail")] == ["cpu", "budget", "oom", "env_error"]
    for action, seen in loaded.items():
        stopped = seen[-1] in list(EndReason) and is_infrastructure(EndReason(seen[-1]))
        assert seen == quiet[action] or (stopped and seen[:-1] == quiet[action][: len(seen) - 1]), action
