"""One owned child process: started in its own session, logged to a file, found again by pid and start time, ended by pid.

Called by the local broker and store and by the supervisor. Nothing here blocks beyond its stated deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.durable import write_whole

LAUNCHER = Path(__file__).with_name("launch.py")
POLL_S = 0.02
STOP_FIRST = "Stop what started it first: `spade down` after `spade up`"


@dataclass
class OwnedProcess:
    """A process that this project started. `born` tells it from a later process with the same pid."""

    pid: int
    born: str
    child: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        detached: bool = False,
    ) -> OwnedProcess:
        """Starts `argv` with stdout and stderr appended to `log`; unless `detached`, it is killed when the starting thread ends.

        Raises OSError where the program or the log can't be opened.
        """
        command = list(argv) if detached else [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *argv]
        with log.open("ab") as sink:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,  # Ctrl-C reaches the owner only, which stops its services in order
            )
        return cls(pid=child.pid, born=born_at(child.pid), child=child)

    def alive(self) -> bool:
        """Whether it still runs; reaps it when it is a child of ours that has ended."""
        if self.child is not None:
            return self.child.poll() is None
        return bool(self.born) and born_at(self.pid) == self.born

    @property
    def exit_code(self) -> int | None:
        """How it ended, once `alive` has seen it: below 0 by that signal. None while it runs, or where it is no child of ours."""
        return None if self.child is None else self.child.returncode

    def wait(self, deadline_s: float) -> bool:
        """Waits up to `deadline_s` seconds for its end; True when it has ended."""
        end = time.monotonic() + deadline_s
        while self.alive():
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_S)
        return True

    def stop(self, deadline_s: float = 15.0) -> bool:
        """SIGTERM, then SIGKILL after `deadline_s`; True when it ended by itself."""
        self._signal(signal.SIGTERM)
        if self.wait(deadline_s):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self._signal(signal.SIGKILL)
        self.wait(10.0)

    def _signal(self, number: int) -> None:
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


@contextlib.contextmanager
def noted(file: Path, state: Mapping[str, object]) -> Iterator[None]:
    """Notes a process in `file` before it serves, whole or not at all: one that outlives its starter has to be found again from
    its first moment on. Where the body fails, the file holds again what it held, unless another process was noted meanwhile."""
    former = file.read_bytes() if file.exists() else None
    own = json.dumps(state).encode()
    write_whole(file, own)
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            mine = file.read_bytes() == own
            if mine and former is not None:
                write_whole(file, former)
            elif mine:
                file.unlink()
        raise


def born_at(pid: int) -> str:
    """The start time of a live process in clock ticks since boot ("" when it is gone or a zombie); from /proc, else from ps."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if fields[0] in ("Z", "X") else fields[19]
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10)
    return answer.stdout.strip()


def describe_end(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def last_lines(log: Path, start: int = 0, count: int = 12) -> str:
    """The last `count` non-empty lines of `log` behind byte `start`, joined by " | "; "" when there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as source:
        source.seek(max(start, log.stat().st_size - 16_384))
        text = source.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:])
