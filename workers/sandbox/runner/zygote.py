"""The jail's first process: it compiles one source, imports what that names, and forks a child for each episode."""

from __future__ import annotations

import _socket
import gc
import posix
import sys
from time import sleep as _nap

from workers.sandbox.runner.episode import Child, EnvironmentFaultError, describe
from workers.sandbox.runner.kernel import Kernel
from workers.sandbox.runner.wire import make_frame, read_exactly, scan, send_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types

CONTROL_FD = 3
PLAIN_SPACE = 64 << 20
NUMPY_SPACE = 512 << 20
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
RLIMIT_CPU = 0
RLIMIT_AS = 9
SIGXCPU = 24
SIG_DFL = 0
# of the compiler, which nested `finally` doubles at each depth; the jail's own limit (jail.cfg) is the zygote's afterwards
COMPILE_CPU_S = 2
JAIL_CPU_S = 120
KEPT_STATUSES = 4096
# what nearly every environment draws its tasks by: a jail that stands ready has it before its source is known
USUAL = "random"
PREIMPORT = frozenset(
    "random math string re json collections dataclasses itertools functools enum typing heapq bisect copy textwrap "  # noqa: SIM905
    "statistics fractions decimal operator abc numpy gymnasium __future__".split()
)


class Zygote:
    """The jail's first process: one source, many children, their exit statuses."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control
        self.code: types.CodeType | None = None
        self.fault: EnvironmentFaultError | None = None
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, tuple[int, float]] = {}
        self.kernel = Kernel()
        self.reaped_s = 0.0
        self.extra_space = PLAIN_SPACE

    def reap(self) -> None:
        """Keeps the statuses of ended children that nobody has asked for yet, up to a bound. Called before each fork and where
        one is asked for: a signal for each child's end would wake this process once more a play."""
        try:
            while True:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
                if pid == 0:
                    return
                # times of ended children, together; by wait4 they would come with the resource module
                all_s = sum(posix.times()[2:4])
                self.statuses[pid] = (status, all_s - self.reaped_s)
                self.reaped_s = all_s
                if len(self.statuses) > KEPT_STATUSES:
                    self.statuses.pop(next(iter(self.statuses)))
        except ChildProcessError:
            return

    def load(self, source: str) -> None:
        """Compiles the source and imports what its module level names; a fault is kept for the children to tell."""
        kernel = self.kernel
        # a namespace's first process gets no signal that it does not handle, and Python's own handlers wait for the compiler
        kernel.signal(SIGXCPU, kernel.leave, 0, 0, 0)
        # the limit is of all that the process has used: its start counts for whole seconds on an emulated machine
        limit_s = COMPILE_CPU_S + int(sum(posix.times()[:2]))
        kernel.setrlimit(RLIMIT_CPU, kernel.limit(limit_s, JAIL_CPU_S), 0, 0, 0)
        try:
            self.code = compile(source, "environment", "exec", dont_inherit=True, optimize=0)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            self.fault = EnvironmentFaultError("raised", describe(error))
            return
        finally:
            kernel.setrlimit(RLIMIT_CPU, kernel.limit(JAIL_CPU_S, JAIL_CPU_S), 0, 0, 0)
            kernel.signal(SIGXCPU, SIG_DFL, 0, 0, 0)
        for name in self.code.co_names:
            if name.partition(".")[0] in PREIMPORT:
                try:
                    __import__(name)
                except ImportError:
                    continue
        if "numpy" in sys.modules:
            self.extra_space = NUMPY_SPACE
        # what is frozen is not looked at, hence not copied, when a child collects garbage
        gc.freeze()

    def fork(self, session: int, descriptor: int, max_turns: int, cpu_s: int, memory_bytes: int) -> None:
        """One child; the parent keeps nothing of its socket."""
        self.reap()
        cpu_limit = self.kernel.limit(cpu_s, cpu_s + 1)
        space_limit = self.kernel.limit(memory_bytes + self.extra_space, memory_bytes + self.extra_space)
        hello = make_frame("hello", session)
        child = Child(descriptor, session, max_turns)
        try:
            pid = posix.fork()
        except OSError:
            posix.close(descriptor)
            return
        if pid:
            posix.close(descriptor)
            self.pids[session] = pid
            if len(self.pids) > KEPT_STATUSES:
                self.pids.pop(next(iter(self.pids)))
            return
        try:
            posix.close(CONTROL_FD)
            posix.dup2(0, 1, False)
            posix.dup2(0, 2, False)
            posix.write(descriptor, hello)
            self.confine(cpu_limit, space_limit)
            gc.enable()
            child.serve(self.code, self.fault)
        finally:
            posix._exit(0)

    def confine(self, cpu_limit: int, space_limit: int) -> None:
        """Lowers this process's limits, then forbids it all that only the zygote may do."""
        kernel = self.kernel
        failed = kernel.setrlimit(RLIMIT_CPU, cpu_limit, 0, 0, 0) or kernel.setrlimit(RLIMIT_AS, space_limit, 0, 0, 0)
        if failed or kernel.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, kernel.filter, 0, 0) != 0:
            posix._exit(99)

    def tell_status(self, session: int) -> None:
        """Replies with how the child of `session` ended: wait status (-1: not known) and CPU milliseconds."""
        pid = self.pids.get(session)
        deadline = 100
        self.reap()
        while pid is not None and pid not in self.statuses and deadline:
            _nap(0.005)
            self.reap()
            deadline -= 1
        status, used_s = self.statuses.pop(pid or -1, (-1, 0.0))
        send_frame(CONTROL_FD, "status", session, status, int(used_s * 1000))

    def serve(self) -> None:
        """Runs until the host closes the control channel."""
        while True:
            begun, ancillary, _, _ = self.control.recvmsg(4, _socket.CMSG_SPACE(4))
            header = read_exactly(CONTROL_FD, 4, begun) if begun else None
            if header is None:
                return
            body = read_exactly(CONTROL_FD, int.from_bytes(header, "big"))
            if body is None:
                return
            operation, *arguments = scan(body.decode(), 0)[0]
            if operation == "load":
                self.load(*arguments)
            elif operation == "fork":
                self.fork(arguments[0], int.from_bytes(ancillary[0][2], sys.byteorder), *arguments[1:])
            elif operation == "status":
                self.tell_status(*arguments)


def main() -> None:
    """The jail's entry point."""
    gc.disable()  # the zygote makes no garbage that matters; a child turns it on before it runs the source
    __import__(USUAL)
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, CONTROL_FD)
    Zygote(control).serve()
