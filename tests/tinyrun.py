"""An undisturbed run of the recipe `tiny`, as users start it: looked at by itself, and beside one whose processes are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RUN_ID = "tiny-run"
STEPS = 5
RUN_LIMIT_S = 900.0


@dataclass(frozen=True)
class TinyRun:
    """Its folder, with its broker and store ended, and what it said."""

    folder: Path
    output: str


def command(*arguments: str) -> list[str]:
    """`spade run` with these arguments."""
    return [sys.executable, "-P", "-m", "infra.cli", "run", *arguments]


def options(folder: Path) -> list[str]:
    """Arguments of this run, in that folder: equal ids make equal seeds, so equal runs."""
    return ["tiny", "--id", RUN_ID, "--dir", str(folder), "--set", f"schedule.steps={STEPS}"]


def environment(home: Path) -> dict[str, str]:
    """The environment of a user whose SPADE_STATE is below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPADE_") or name == "SPADE_CACHE"}
    return {**kept, "SPADE_STATE": str(home / "state"), "PYTHONUNBUFFERED": "1"}


def spade_run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        command(*arguments), env=environment(home), capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
    )


def make_tiny_run(home: Path) -> TinyRun:
    """Runs it. Blocks for a minute or more."""
    folder = home / "run"
    answer = spade_run(home, *options(folder))
    logs = "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in sorted((folder / "logs").glob("*.log")))
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}\n{logs}"
    return TinyRun(folder, answer.stdout)
