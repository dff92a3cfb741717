"""Host side of the launcher process: asks it to start and stop jails.

Who calls: jail.py. `start` and `stop` block a few milliseconds (deadlines START_S, STOP_S); safe for several threads. May
raise SandboxError where the launcher does not answer.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from schemas.errors import SandboxError

PROGRAM: Final = Path(__file__).with_name("launcher.py")
START_S: Final = 20.0
STOP_S: Final = 20.0


class LauncherClient:
    """One launcher process; it ends with `close`, or by itself where this process dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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

    def start(self, argv: list[str], procs: list[str], slot: int, folders: list[str], descriptors: list[int]) -> tuple[int, int]:
        """Starts a jail with copies of [stdio, log, control, slot lock]. Gives its id and nsjail's pid."""
        identity = next(self._ids)
        request = {"op": "start", "id": identity, "argv": argv, "procs": procs, "slot": slot, "dirs": folders}
        answer = self._ask(request, descriptors, START_S)
        return identity, int(answer["pid"])

    def stop(self, identity: int) -> tuple[int, float]:
        """Ends a jail. Gives nsjail's wait status (-1: not known) and CPU seconds. Never raises."""
        try:
            answer = self._ask({"op": "stop", "id": identity}, [], STOP_S)
        except SandboxError:
            return -1, 0.0
        return int(answer["status"]), float(answer["cpu_s"])

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
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: dict[str, Any], descriptors: list[int], timeout_s: float) -> dict[str, Any]:
        with self._lock:
            try:
                self._socket.settimeout(timeout_s)
                socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
                data = self._socket.recv(1 << 16)
            except OSError as error:
                raise SandboxError(f"the jail launcher does not answer: {error}", "Close the sandbox and open another") from error
        if not data:
            raise SandboxError("the jail launcher is gone", "Close the sandbox and open another")
        answer: dict[str, Any] = json.loads(data)
        if answer["id"] != request["id"]:
            raise SandboxError(f"the jail launcher answered for {answer['id']} where {request['id']} was asked")
        return answer
