"""A `spade` command as a child with a deadline, followed by its log: what the ablations are made of.

In: arguments of a command. Out: its log. Called by `spade ablate`, in the main thread. Blocks; raises AblationError where the
child fails, StageTimeoutError at the deadline. On Ctrl-C, or any error here, the child is stopped first, which ends its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
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


def run_child(arguments: Sequence[str], log: Path, limit_s: float, say: Callable[[str], None], name: str) -> None:
    """Runs `spade ARGUMENTS` to its end, with broker and store of its own; every half minute `say` gets the log's last line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begun, told = time.monotonic(), time.monotonic()
    start = log.stat().st_size if log.exists() else 0
    state = log.parent.parent
    process = OwnedProcess.start([sys.executable, "-P", "-m", "infra.cli", *arguments], log, env=apart(state))
    try:
        while process.alive():
            now = time.monotonic()
            if now - begun > limit_s:
                raise StageTimeoutError(
                    f"{name} has not ended within {limit_s / 60:.0f} minutes", "Allow more --minutes: the same command goes on"
                )
            if now - told > TELL_S:
                told = now
                say(f"  {name}, {(now - begun) / 60:.1f} min: {escape_line(last_lines(log, start, count=1), 200)}")
            time.sleep(POLL_S)
    finally:
        with cleanup():
            process.stop(STOP_S)
    if process.exit_code != 0:
        raise AblationError(
            f"{name} {describe_end(process.exit_code)}: {escape_line(last_lines(log, start, count=1), 500)}",
            f"Look at {log}; the same command goes on",
        )
