"""The processes of one `spade run` that may be struck, found anew at each blow, and the blows themselves.

In: the supervisor's process and the run's folder. Out: processes by kind. Called by the storm. Strikes only children of the
supervisor that the storm itself started, and the broker and store in that run's own folder, each told from a later process with
the same id by its start time. Blocks for one `ps`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

from infra.chaos.openwork import KINDS
from infra.local.processes import OwnedProcess, born_at

BROKER, STORE, SUPERVISOR, MEMORY = "broker", "store", "supervisor", "work-memory"
ALL_KINDS = (*KINDS, MEMORY, BROKER, STORE, SUPERVISOR)
# Seconds of a stall: longer than the group forgets a silent member (streams 30, workers 15, memory 10); the trainer has no group.
STALL_S = {
    **{kind: 35.0 for kind in KINDS if kind.startswith("stream-")},
    **{kind: 19.0 for kind in KINDS if kind.startswith("work-")},
    MEMORY: 14.0,
    "train": 8.0,
}
_COMMAND = re.compile(r"-m infra\.cli (work|stream|train)(?: (\w+))?\s*$")


def find_victims(kind: str, supervisor: OwnedProcess, run_dir: Path) -> list[OwnedProcess]:
    """The living processes of a kind, oldest first; [] where there is none just now."""
    if kind == SUPERVISOR:
        return [supervisor] if supervisor.alive() else []
    if kind in (BROKER, STORE):
        return _service(run_dir / kind / f"{kind}.json")
    return [process for name, process in _children(supervisor.pid) if name == kind]


def strike(process: OwnedProcess, number: signal.Signals) -> bool:
    """Sends a signal; False where the process has ended already."""
    if not process.alive():
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _children(parent: int) -> list[tuple[str, OwnedProcess]]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args=", "-ww"], capture_output=True, text=True, check=True, timeout=30)
    found = []
    for line in listed.stdout.splitlines():
        pid, ppid, arguments = line.split(None, 2)
        match = _COMMAND.search(arguments)
        if int(ppid) == parent and match:
            name = "-".join(part for part in match.groups() if part)
            found.append((name, OwnedProcess(int(pid), born_at(int(pid)))))
    return found


def _service(state: Path) -> list[OwnedProcess]:
    try:
        told = json.loads(state.read_text(encoding="utf-8"))
        process = OwnedProcess(told["pid"], told["born"])
    except (OSError, ValueError, KeyError):
        return []  # between an end and a start
    return [process] if process.alive() else []
