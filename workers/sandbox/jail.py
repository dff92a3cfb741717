"""One jail: an nsjail process with the runner as its zygote, its control channel, and what its death meant.

In: a slot, a root, limits. Out: episode sockets (a forked child each). Who calls: the engine. Starting does not block; the
first child's hello does. May raise SessionEnd (infrastructure) and SandboxError.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from infra.plaintext import escape_line
from schemas.errors import SandboxError
from workers.sandbox import frames
from workers.sandbox.base import EndReason, ErrorKind, Limits, SessionEnd
from workers.sandbox.launch import LauncherClient
from workers.sandbox.rootcache import HeldRoot
from workers.sandbox.slots import Slot

HERE: Final = Path(__file__).parent
LOG_BYTES: Final = 64 * 1024
# the zygote, its children and nsjail share a cgroup
PIDS: Final = 120
MAX_CHILDREN: Final = 96
# siblings share the slot: room for some at their own limit before the kernel picks one
MEMORY_FACTOR: Final = 3
STATUS_S: Final = 1.5
INSIDE_UID: Final = 65534


class _Status(msgspec.Struct, array_like=True, tag="status", forbid_unknown_fields=True):
    session: int
    status: int
    cpu_ms: int


@dataclass(frozen=True)
class JailSetup:
    """What all jails of a sandbox share. `held`: its hold of the root, let go at its end. `config` and `policy` are other
    ones in tests alone, which take a barrier away to show what it holds: no setting, recipe or command names them."""

    nsjail: Path
    root: Path
    launcher: LauncherClient
    held: HeldRoot | None = None
    config: Path = HERE / "jail.cfg"
    policy: Path = HERE / "seccomp.kafel"


class Jail:
    """A started jail. `load` at most once, then `fork` per episode."""

    def __init__(self, setup: JailSetup, slot: Slot, hash_seed: int) -> None:
        self.slot = slot
        self.hash_seed = hash_seed
        self.busy = 0
        self.stopped = False
        self.processors = setup.launcher.processors
        self._setup = setup
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._log = _sealed_log()
        self.exit_status = -1
        self.exit_cpu_s = 0.0
        self._oom_before = slot.group.oom_kills() if slot.group else 0
        # as last read: a session that begins needs no newer number, as each end by a kill reads it anew
        self.known_oom_kills = self._oom_before
        self._cpu_before = slot.group.cpu_s() if slot.group else 0.0
        host, jailed = socket.socketpair()
        self._control = frames.Channel(host, 1 << 12)
        try:
            with Path(os.devnull).open("r+b") as null:
                self._id = setup.launcher.start(
                    self._arguments(),
                    slot.group.procs_files() if slot.group else [],
                    slot.number,
                    [str(folder) for folder in slot.group.folders.values()] if slot.group else [],
                    [null.fileno(), self._log, jailed.fileno(), slot.lock_fd],
                )
        except BaseException:
            host.close()
            os.close(self._log)
            raise
        finally:
            jailed.close()

    def _arguments(self) -> list[str]:
        uid = self.slot.uid
        if uid == 0:
            raise SandboxError("a jail may not run as the outside root user")
        maps = [f"{INSIDE_UID}:{uid}:1", f"{INSIDE_UID}:{uid if os.geteuid() == 0 else os.getegid()}:1"]
        return [
            str(self._setup.nsjail), "--config", str(self._setup.config), "--seccomp_policy", str(self._setup.policy),
            "--chroot", str(self._setup.root), "--user", maps[0], "--group", maps[1], "--log_fd", "2",
            "--env", f"PYTHONHASHSEED={self.hash_seed}",
            "--", "/bin/python3", "-s", "-S", "-P", "-c", "from spade_runner import main; main()",
        ]  # fmt: skip

    @property
    def pid(self) -> int:
        """nsjail's process id. Blocks until the launcher has forked it; raises SandboxError."""
        return self._setup.launcher.pid(self._id)

    def keep_to(self, processors: set[int]) -> None:
        """Lets the jail's processes, as far as its slot's cgroup tells them, run on these processors only. Never raises: what
        can't be moved stays where it is."""
        self.processors = processors
        for pid in self.slot.group.processes() if self.slot.group else []:
            with suppress(OSError):
                os.sched_setaffinity(pid, processors)

    def load(self, source: str) -> None:
        """Sends the source. Raises SessionEnd where it can't be sent."""
        try:
            frame = frames.encode("load", source)
        except UnicodeEncodeError as error:
            raise SessionEnd(EndReason.ENV_ERROR, "the source holds surrogates", ErrorKind.RAISED) from error
        with self._lock:
            try:
                self._control.send(frame, STATUS_S)
            except (frames.ClosedError, TimeoutError) as error:
                raise self.explain_death() from error

    def fork(self, max_turns: int, limits: Limits) -> tuple[int, socket.socket]:
        """Asks for a child. Gives its number and the host's end of its socket; the child's hello comes over that."""
        number = next(self._numbers)
        host, jailed = socket.socketpair()
        host.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        frame = frames.encode("fork", number, max_turns, limits.cpu_s, limits.memory_bytes)
        try:
            with self._lock:
                sent = socket.send_fds(self._control.socket, [frame], [jailed.fileno()])
                if sent != len(frame):
                    raise OSError("the control channel is full")
        except OSError as error:
            host.close()
            raise self.explain_death() from error
        finally:
            jailed.close()
        return number, host

    def status(self, number: int) -> tuple[int, float] | None:
        """Wait status and CPU seconds of an ended child, or None where the zygote can't tell."""
        with self._lock, suppress(frames.ClosedError, frames.ViolationError, TimeoutError, msgspec.DecodeError):
            self._control.send(frames.encode("status", number), STATUS_S)
            reply = msgspec.json.decode(self._control.receive(STATUS_S), type=_Status)
            if reply.session == number and reply.status >= 0:
                return reply.status, reply.cpu_ms / 1000
        return None

    def oom_kills(self) -> int:
        """How many processes the memory cgroup has killed; 0 where there is none."""
        self.known_oom_kills = self.slot.group.oom_kills() if self.slot.group else 0
        return self.known_oom_kills

    def cpu_s(self) -> float:
        """CPU seconds of everything in the jail so far; without cgroups only after the end."""
        return self.slot.group.cpu_s() - self._cpu_before if self.slot.group else self.exit_cpu_s

    def explain_death(self) -> SessionEnd:
        """The end of every session of this jail once its zygote is gone: the source's doing where a signal says so."""
        self.stop()
        status, log = self.exit_status, self.log_text()
        code = os.waitstatus_to_exitcode(status) if status >= 0 else -1
        if (
            self.slot.group is not None
            and self.oom_kills() > self._oom_before
            and code in (128 + signal.SIGKILL, -signal.SIGKILL)
        ):
            return SessionEnd(EndReason.OOM, "the jail's memory limit")
        if code == signal.SIGXCPU:
            return SessionEnd(EndReason.CPU, "compiling the source")
        if code == 128 + signal.SIGSYS:
            return SessionEnd(EndReason.SECCOMP, "the jail's zygote made a forbidden system call")
        if code in (128 + signal.SIGSEGV, 128 + signal.SIGABRT, 128 + signal.SIGBUS):
            return SessionEnd(EndReason.ENV_ERROR, f"loading the source crashed the interpreter ({code - 128})", ErrorKind.EXITED)
        return SessionEnd(EndReason.DIED, escape_line(f"the jail ended with {code}: {log[-300:]}"))

    def log_text(self) -> str:
        """What nsjail and the zygote wrote to the sealed log."""
        with suppress(OSError):
            return os.pread(self._log, LOG_BYTES, 0).rstrip(b"\0").decode(errors="replace").strip()
        return ""

    def stop(self) -> None:
        """Ends the jail with all its children; blocks about 3 ms, at most 5 s. The slot stays with the caller."""
        if self.stopped:
            return
        self.stopped = True
        self._control.close()
        self.exit_status, self.exit_cpu_s = self._setup.launcher.stop(self._id)
        if self.slot.group is not None:
            self.slot.group.kill()

    def discard(self) -> None:
        """Stops the jail and closes its log."""
        self.stop()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


def child_cpu_s(pid: int) -> float:
    """CPU seconds of a process, by its own clock (clock_getcpuclockid(3) as arithmetic); 0 where it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def _sealed_log() -> int:
    """An anonymous file of LOG_BYTES that can't grow or shrink."""
    log = os.memfd_create("jail-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(log, LOG_BYTES)
    fcntl.fcntl(log, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return log
