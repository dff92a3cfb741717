"""Host side of the launcher process: asks it to start and stop jails.

Who calls: jail.py. `start` only sends, so that no play waits for the fork of a jail that is to be kept ready; `stop` and `pid`
wait for the launcher, a few milliseconds (deadline ANSWER_S). Safe for several threads. May raise SandboxError where the launcher
does not answer.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from schemas.errors import SandboxError

PROGRAM: Final = Path(__file__).with_name("launcher.py")
ANSWER_S: Final = 20.0
MAX_ANSWER: Final = 1 << 16


class LauncherClient:
    """One launcher process; it ends with `close`, or by itself where this process dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pids: dict[int, int] = {}
        self._ends: dict[int, tuple[int, float]] = {}
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        self.processors = os.sched_getaffinity(0)  # where the launcher may run, and what it starts
        binary = getattr(sys, "_base_executable", sys.executable)
        try:
            self._process = subprocess.Popen(
                [binary, "-I", "-S", str(PROGRAM), str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                # only what the interpreter itself may need to start; jails get none of it
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                start_new_session=True,
            )
        finally:
            other.close()

    def start(self, argv: list[str], procs: list[str], slot: int, folders: list[str], descriptors: list[int]) -> int:
        """Has a jail started with copies of [stdio, log, control, slot lock]; gives its id. Where that fails the jail's own
        control channel closes."""
        identity = next(self._ids)
        request = {"op": "start", "id": identity, "argv": argv, "procs": procs, "slot": slot, "dirs": folders}
        with self._lock:
            while self._readable.poll(0):
                self._take_answer(0)  # else answers that nobody waits for would fill the socket
            self._send(request, descriptors)
        return identity

    def pid(self, identity: int) -> int:
        """nsjail's process id."""
        with self._lock:
            while identity not in self._pids:
                self._take_answer(ANSWER_S)
            return self._pids[identity]

    def stop(self, identity: int) -> tuple[int, float]:
        """Ends a jail. Gives nsjail's wait status (-1: not known) and CPU seconds. Never raises."""
        with self._lock:
            try:
                self._send({"op": "stop", "id": identity}, [])
                while identity not in self._ends:
                    self._take_answer(ANSWER_S)
            except SandboxError:
                return -1, 0.0
            self._pids.pop(identity, None)
            return self._ends.pop(identity)

    def cpu_s(self) -> float:
        """CPU seconds of the launcher itself; 0 once it is gone."""
        try:
            return time.clock_gettime(~self._process.pid << 3 | 2)
        except OSError:
            return 0.0

    def close(self) -> None:
        """Ends the launcher and with it whatever jail is left."""
        self._socket.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        try:
            while True:
                try:
                    socket.send_fds(self._socket, [data], descriptors)
                    return
                except BlockingIOError:
                    if not self._writable.poll(ANSWER_S * 1000):
                        raise TimeoutError("it does not read") from None
        except OSError as error:
            raise _unanswered(error) from error

    def _take_answer(self, timeout_s: float) -> None:
        """Reads the next answer; they come in the order of the requests."""
        try:
            if not self._readable.poll(timeout_s * 1000):
                raise TimeoutError(f"nothing in {timeout_s:g} s")
            data = self._socket.recv(MAX_ANSWER)
        except OSError as error:
            raise _unanswered(error) from error
        if not data:
            raise SandboxError("the jail launcher is gone", "Close the sandbox and open another")
        answer: dict[str, Any] = json.loads(data)
        if "pid" in answer:
            self._pids[answer["id"]] = int(answer["pid"])
        else:
            self._ends[answer["id"]] = int(answer["status"]), float(answer["cpu_s"])


def _unanswered(error: OSError) -> SandboxError:
    return SandboxError(f"the jail launcher does not answer: {error}", "Close the sandbox and open another")
