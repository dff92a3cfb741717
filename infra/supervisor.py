"""Starts a run's stages as processes of their own, restarts what fails, and stops all of it.

In: specs (name and arguments) and a folder for logs. Out: events for the terminal. Called by `spade run` and `spade demo` from
their main thread, which must live as long as the children: the kernel kills them when it ends. A child that exits 0 has finished;
one that exits otherwise is started again after a pause, up to a limit for each cause, unless its exit code says that a new start
can't help. Local services that are guarded are looked after in the same way; what fails for their absence is not counted.
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
from infra.local.guard import Guard
from infra.local.processes import OwnedProcess, describe_end
from infra.restarts import Restarts
from schemas.errors import BrokerError, DiskFullError, SandboxError, SettingsError, SupervisorError

STOP_DEADLINE_S = 20.0
GROUP_DEADLINE_S = 2.0
EARLY_END_PAUSE_S = 5.0  # a child may see the run's end before its supervisor does
# A bad setting, a jail below the required level or a full disk stays so however often the process is started.
FINAL_CODES = frozenset({SettingsError.exit_code, SandboxError.exit_code, DiskFullError.exit_code})
AWAY_CODE = BrokerError.exit_code  # broker or store can't be reached
AWAY_S = 150.0  # longer than any client waits for its broker before it gives up
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
    restarts: Restarts
    process: OwnedProcess | None = None
    started_at: float = 0.0  # monotonic
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
    guards: Sequence[Guard] = ()
    """The run's own broker and store, where it has any."""
    children: dict[str, Child] = field(default_factory=dict)
    may_end: bool = False
    """Set when the run has finished: from then on a child that exits 0 is done; before, it is started again."""

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Starts every spec. Raises SupervisorError where a program can't be started at all."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for spec in specs:
            child = Child(spec=spec, log=self.log_dir / f"{spec.name}.log", restarts=Restarts(self.restarts))
            self.children[spec.name] = child
            self._launch(child)

    def poll(self) -> None:
        """Looks at every child once and starts again what failed. Raises SupervisorError at a limit, DiskFullError.

        Blocks only while a guarded service that died starts again.
        """
        for guard in self.guards:
            guard.poll()
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
        child.started_at = self.clock.monotonic()
        try:
            child.process = OwnedProcess.start(argv, child.log, env={**os.environ, **self.environment})
        except OSError as problem:
            raise SupervisorError(f"{child.spec.name} can't be started ({problem})", f"Its log is {child.log}") from problem

    def _ended(self, child: Child, process: OwnedProcess) -> None:
        code = 1 if process.exit_code is None else process.exit_code
        _sweep_group(process)
        child.process = None
        child.ended_well = code == 0
        if child.ended_well and self.may_end:
            child.finished = True
            return
        cause = f"{child.spec.name} {describe_end(code)}"
        why = f"{cause}: {last_error(child.log, child.log_start)}"
        if code in FINAL_CODES:
            child.finished = True
            raise SupervisorError(f"process {child.spec.name} failed; last: {why}", f"The whole log is {child.log}")
        pause = EARLY_END_PAUSE_S if child.ended_well else child.restarts.pause_s()
        if not self._is_excused(code):
            pause = self._count(child, cause, why)
        child.start_at = self.clock.monotonic() + pause
        telemetry.count("spade_restarts_total", process=child.spec.name)
        if not child.ended_well:
            self.notify(f"{why}; starting it again in {pause:.1f} s")

    def _count(self, child: Child, cause: str, why: str) -> float:
        """Counts a failure; the pause before the next start. Raises SupervisorError at the limit."""
        if not child.restarts.note(cause, self.clock.monotonic() - child.started_at):
            child.finished = True
            raise SupervisorError(
                f"process {child.spec.name} failed {child.restarts.failures[cause]} times; last: {why}",
                f"The whole log is {child.log}",
            )
        return EARLY_END_PAUSE_S if child.ended_well else child.restarts.pause_s()

    def _is_excused(self, code: int) -> bool:
        """Whether a child failed because a guarded service was down: its guard counts that."""
        return code == AWAY_CODE and any(guard.was_down_within(AWAY_S) for guard in self.guards)


def last_error(log: Path, start: int = 0) -> str:
    """The last line behind byte `start` that a command printed as its error, else the last line; "" for an empty log."""
    if not log.exists():
        return ""
    with log.open("rb") as source:
        source.seek(max(start, log.stat().st_size - TAIL_BYTES))
        lines = [line.strip() for line in source.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]


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
