"""The launcher: a small process that starts, ends and reaps the jails of one host process, and outlives its death briefly.

Started by path with a bare interpreter (standard library only). Why a process of its own: a jail has to join its cgroup and
set its parent-death signal between fork and exec, which is slow and unsafe in a large threaded host; the parent-death
signal hangs on a thread, and this process has one that lives; and where the host is killed, this one sees its socket close,
ends all jails, removes their cgroups and leaves. Requests are JSON datagrams with descriptors, answered in order.
In: start {id, argv, procs, slot, dirs} with [stdio, log, control, slot lock]; stop {id}; bye. Out: {id, pid} or
{id, status, cpu_s}.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TERM_S = 2.0
PR_SET_PDEATHSIG = 1


class Launcher:
    """Jails by id (pid, exit status), and the cgroup folders of every slot they ever used."""

    def __init__(self, host: socket.socket) -> None:
        self.host = host
        self.jails: dict[int, int] = {}
        self.ended: dict[int, dict[str, float]] = {}
        self.slots: dict[int, list[str]] = {}
        self.libc = ctypes.CDLL(None)
        self.wakeup, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self.wakeup, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, float]:
        """Forks a jail; the host gets its pid."""
        identity = request["id"]
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self.become_jail(request, descriptors, parent)
            except OSError as error:
                os.write(descriptors[1], f"launcher: {error}".encode())
            finally:
                os._exit(97)
        self.jails[identity] = pid
        # one copy of a slot's lock is enough, and stays until this process is gone
        known = request["slot"] in self.slots
        self.slots.setdefault(request["slot"], request["dirs"])
        for descriptor in descriptors if known else descriptors[:3]:
            os.close(descriptor)
        return {"id": identity, "pid": pid}

    def become_jail(self, request: dict[str, Any], descriptors: list[int], parent: int) -> None:
        """In the child: own session, parent-death signal, cgroups, descriptors 0 to 3, then nsjail."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            return
        for name in request["procs"]:
            handle = os.open(name, os.O_WRONLY)
            os.write(handle, b"0")
            os.close(handle)
        high = [os.dup(descriptor) if descriptor < 10 else descriptor for descriptor in descriptors[:3]]
        stdio, log, control = [moved if moved > 3 else os.dup(moved) for moved in high]
        for source, target in ((stdio, 0), (log, 1), (log, 2), (control, 3)):
            os.dup2(source, target, True)
        os.execve(request["argv"][0], request["argv"], {})  # noqa: S606 - an argument list of the host's own

    def drain(self) -> None:
        """Takes what signals wrote to the pipe."""
        with suppress(BlockingIOError):
            os.read(self.wakeup, 512)

    def reap(self) -> None:
        """Collects the jails that have ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for identity, known in self.jails.items():
                if known == pid:
                    self.ended[identity] = {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime}

    def stop(self, identity: int) -> dict[str, float]:
        """SIGTERM, after TERM_S SIGKILL; then the exit status. Blocks up to twice TERM_S."""
        if identity in self.jails:
            pid = self.jails[identity]
            for number in (signal.SIGTERM, signal.SIGKILL):
                self.reap()
                if identity in self.ended:
                    break
                os.kill(pid, number)
                deadline = time.monotonic() + TERM_S
                while identity not in self.ended and (left_s := deadline - time.monotonic()) > 0:
                    # a child's end writes to the pipe; one that ended before is found at once
                    self.reap()
                    if identity not in self.ended:
                        select.select([self.wakeup], [], [], left_s)
                        self.drain()
            del self.jails[identity]
        return {"id": identity, **self.ended.pop(identity, {"status": -1, "cpu_s": 0.0})}

    def serve(self) -> None:
        """Answers until the host is gone, then leaves nothing behind."""
        while True:
            ready, _, _ = select.select([self.host.fileno(), self.wakeup], [], [])
            if self.wakeup in ready:
                self.drain()
                self.reap()
            if self.host.fileno() not in ready:
                continue
            try:
                data, ancillary, _, _ = self.host.recvmsg(1 << 16, socket.CMSG_SPACE(16))
            except OSError:
                return
            if not data:
                return
            descriptors = array.array("i", b"".join(part for _, kind, part in ancillary if kind == socket.SCM_RIGHTS))
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            request = json.loads(data)
            if request["op"] == "bye":
                return
            answer = self.start(request, list(descriptors)) if request["op"] == "start" else self.stop(request["id"])
            try:
                self.host.send(json.dumps(answer).encode())
            except OSError:
                return

    def clean(self) -> None:
        """Ends all jails, then whatever is left in their cgroups, then the cgroups; the slots' locks go with this process."""
        for pid in self.jails.values():
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        for identity in list(self.jails):
            self.stop(identity)
        deadline = time.monotonic() + TERM_S
        for folder in [folder for folders in self.slots.values() for folder in folders]:
            place = Path(folder)
            while place.is_dir() and time.monotonic() < deadline:
                try:
                    for line in (place / "cgroup.procs").read_text().split():
                        os.kill(int(line), signal.SIGKILL)
                    place.rmdir()
                except OSError:
                    time.sleep(0.001)
            with suppress(OSError):
                place.parent.rmdir()  # the folder that held all slots, where this was the last one


def main() -> None:
    """Serves the host on the descriptor that is named by the first argument."""
    gc.disable()  # it makes no cycles, and a collection would cost every jail's fork the pages that it touches
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    launcher = Launcher(socket.socket(fileno=int(sys.argv[1])))
    try:
        launcher.serve()
    finally:
        launcher.clean()


if __name__ == "__main__":
    main()
