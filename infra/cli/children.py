"""`spade` commands as children with a deadline, followed by their logs: what the ablations are made of.

In: arguments of commands. Out: their logs. Called by `spade ablate`, in the main thread. Blocks; raises AblationError where a
child fails, StageTimeoutError at the deadline. On Ctrl-C, or any error here, all children are stopped first, which end their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.cli.disturb import apart
from infra.cli.interrupts import cleanup
from infra.local.processes import OwnedProcess, describe_end, last_lines
from infra.plaintext import escape_line
from schemas.errors import SpadeError, StageTimeoutError

STOP_S = 60.0
TELL_S = 30.0  # between two lines of progress
POLL_S = 0.2


class AblationError(SpadeError):
    """A child of an ablation that failed, or left something that can't be used."""


@dataclass(frozen=True)
class Child:
    """One command: what follows `spade`, where its output goes, what it is called in messages."""

    arguments: Sequence[str]
    log: Path
    name: str


def run_children(children: Sequence[Child], limit_s: float, say: Callable[[str], None]) -> None:
    """Runs the commands at the same time to their ends, each `spade run` with a broker and store of its own; every half minute
    `say` gets the last line of each log."""
    begun = time.monotonic()
    running: list[tuple[Child, OwnedProcess, int]] = []
    try:
        for child in children:
            child.log.parent.mkdir(parents=True, exist_ok=True)
            start = child.log.stat().st_size if child.log.exists() else 0
            command = [sys.executable, "-P", "-m", "infra.cli", *child.arguments]
            running.append((child, OwnedProcess.start(command, child.log, env=apart(child.log.parent.parent)), start))
        told = begun
        while running:
            running = [one for one in running if not _has_ended(*one)]
            now = time.monotonic()
            if running and now - begun > limit_s:
                raise StageTimeoutError(
                    f"{running[0][0].name} has not ended within {limit_s / 60:.0f} minutes",
                    "Allow more --minutes: the same command goes on",
                )
            if now - told > TELL_S:
                told = now
                for child, _, start in running:
                    say(f"  {child.name}, {(now - begun) / 60:.1f} min: {escape_line(last_lines(child.log, start, 1), 200)}")
            time.sleep(POLL_S)
    finally:
        with cleanup():
            for _, process, _ in running:
                process.stop(STOP_S)


def _has_ended(child: Child, process: OwnedProcess, start: int) -> bool:
    """Whether the child has ended well. Raises AblationError where it has ended otherwise."""
    if process.alive():
        return False
    if process.exit_code != 0:
        raise AblationError(
            f"{child.name} {describe_end(process.exit_code)}: {escape_line(last_lines(child.log, start, 1), 500)}",
            f"Look at {child.log}; the same command goes on",
        )
    return True
