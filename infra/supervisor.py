"""Starts a run's stages as processes of their own, restarts what fails, and stops all of it.

In: specs (name and arguments) and a folder for logs. Out: events for the terminal. Called by `spade run` and `spade demo` from
their main thread, which must live as long as the children: the kernel kills them when it ends. A child that exits 0 has finished;
one that exits otherwise is started again after a pause, up to a limit, unless its exit code says that a new start can't help.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra import telemetry
from infra.clock import Clock, SystemClock
from infra.local.processes import OwnedProcess
from schemas.errors import DiskFullError, SandboxError, SettingsError, SupervisorError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
STOP_DEADLINE_S = 20.0
GROUP_DEADLINE_S = 2.0
EARLY_END_PAUSE_S = 5.0  # a child may see the run's end before its supervisor does
# A bad setting, a jail below the required level or a full disk stays so however often the process is started.
FINAL_CODES = frozenset({SettingsError.exit_code, SandboxError.exit_code, DiskFullError.exit_code})
TAIL_BYTES = 16_384


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a run: a name that is unique in it, and what stands behind `spade` on its command line."""

    name: str
    arguments: tuple[str, ...]
    priority: int = 0  # added niceness


@dataclass
class Child:
    """A supervised process and how often it has failed."""

    spec: ProcessSpec
    log: Path
    process: OwnedProcess | None = None
    failures: int = 0
    start_at: float = 0.0  # monotonic; when a failed one is started again
    finished: bool = False
    ended_well: bool = False
    log_start: int = 0  # bytes of the log before this start


@dataclass
class Supervisor:
    """The processes of one run on this machine."""

    log_dir: Path
    environment: Mapping[str, str]
    restarts: int = 3
    clock: Clock = field(default_factory=SystemClock)
    notify: Callable[[str], None] = lambda _line: None
    children: dict[str, Child] = field(default_factory=dict)
    may_end: bool = False
    """Set when the run has finished: from then on a child that exits 0 is done; before, it is started again."""

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Starts every spec. Raises SupervisorError where a program can't be started at all."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for spec in specs:
            child = Child(spec=spec, log=self.log_dir / f"{spec.name}.log")
            self.children[spec.name] = child
            self._launch(child)

    def poll(self) -> None:
        """Looks at every child once, without blocking; starts again what failed. Raises SupervisorError at a limit."""
        for child in self.children.values():
            if child.finished:
                continue
            if child.process is None:
                if child.ended_well and self.may_end:
                    child.finished = True
                elif self.clock.monotonic() >= child.start_at:
                    self._launch(child)
                continue
            if child.process.alive():
                continue
            self._ended(child, child.process)

    def running(self) -> list[str]:
        """Names of the children that have not finished."""
        return [name for name, child in self.children.items() if not child.finished]

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> list[str]:
        """SIGTERM to all at once, SIGKILL to their groups after `deadline_s`; names of those that had to be killed."""
        living = [child for child in self.children.values() if child.process is not None and child.process.alive()]
        for child in living:
            _send(child.process, signal.SIGTERM)
        end = self.clock.monotonic() + deadline_s
        killed = []
        for child in living:
            process = child.process
            assert process is not None
            if not process.wait(max(end - self.clock.monotonic(), 0.0)):
                killed.append(child.spec.name)
            _sweep_group(process)
            process.wait(5.0)
        for child in self.children.values():
            child.process, child.finished = None, True
        return killed

    def _launch(self, child: Child) -> None:
        nice = ["nice", "-n", str(child.spec.priority)] if child.spec.priority else []
        # -P: a folder named like one of our packages in the working directory must not shadow it.
        argv = [*nice, sys.executable, "-P", "-m", "infra.cli", *child.spec.arguments]
        child.log_start = child.log.stat().st_size if child.log.exists() else 0
        try:
            child.process = OwnedProcess.start(argv, child.log, env={**os.environ, **self.environment})
        except OSError as problem:
            raise SupervisorError(f"{child.spec.name} can't be started ({problem})", f"Its log is {child.log}") from problem

    def _ended(self, child: Child, process: OwnedProcess) -> None:
        code = process.child.returncode if process.child is not None else 1
        _sweep_group(process)
        child.process = None
        child.ended_well = code == 0
        if child.ended_well and self.may_end:
            child.finished = True
            return
        child.failures += 1
        why = f"{child.spec.name} {_describe(code)}: {last_error(child.log, child.log_start)}"
        if code in FINAL_CODES or child.failures > self.restarts:
            child.finished = True
            again = "" if code in FINAL_CODES else f" {child.failures} times"
            raise SupervisorError(f"process {child.spec.name} failed{again}; last: {why}", f"The whole log is {child.log}")
        telemetry.count("spade_restarts_total", process=child.spec.name)
        pause = min(FIRST_PAUSE_S * 2 ** (child.failures - 1), LONGEST_PAUSE_S)
        child.start_at = self.clock.monotonic() + (EARLY_END_PAUSE_S if child.ended_well else pause)
        if child.ended_well:
            return
        self.notify(f"{why}; starting it again in {pause:.1f} s ({child.failures} of {self.restarts})")


def last_error(log: Path, start: int = 0) -> str:
    """The last line behind byte `start` that a command printed as its error, else the last line; "" for an empty log."""
    if not log.exists():
        return ""
    with log.open("rb") as source:
        source.seek(max(start, log.stat().st_size - TAIL_BYTES))
        lines = [line.strip() for line in source.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]


def _describe(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _send(process: OwnedProcess | None, number: signal.Signals) -> None:
    if process is not None:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def _sweep_group(process: OwnedProcess) -> None:
    """Ends what is left of the child's process group. SIGTERM first: a jail that is killed outright leaves its cgroups behind."""
    end = time.monotonic() + GROUP_DEADLINE_S
    try:
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < end:
            os.killpg(process.pid, 0)
            process.alive()  # reaps the leader, which would keep the group
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
