"""The in-jail side: a zygote that loads one source and forks a child an episode; the child runs the environment.

Runs inside the jail only, on the standard library, copied into the jail's root by root.py. Talks frames (frames.py) as JSON
arrays: over descriptor 3 with the host (load, fork, status), in a child over the socket that came with the fork. The zygote
never runs environment code: it compiles the source and imports what the source names from the allowed list. A child closes
the control channel, lowers its limits and installs the strict filter before it runs the first line of the source.
Start and fork are paid for every jail and every play, so this module imports builtin modules and three extensions only (each
shared object costs every fork; `json`, `signal`, `array` and `os` pull a third of the standard library between them), and what a
child needs is made before the fork, as each page that a child touches is copied.
"""

from __future__ import annotations

import _json
import _socket
import gc
import posix
import sys
from time import sleep as _nap

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

CONTROL_FD = 3
MAX_FRAME = 1 << 20
MAX_TEXT = 60000
MAX_ACTIONS = 256
PLAIN_SPACE = 64 << 20
NUMPY_SPACE = 512 << 20
INFINITY = float("inf")
CHUNK = 4096
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
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Syscalls that the zygote needs and no child may use; the jail's own allow-list (seccomp.kafel) stops all others.
CHILD_DENIED = {
    "x86_64": (56, 57, 58, 435, 59, 322, 157, 317, 46, 47, 61, 247, 160, 302, 53, 41),
    "aarch64": (220, 435, 221, 281, 167, 277, 211, 212, 260, 95, 164, 261, 199, 198),
}
PREIMPORT = frozenset(
    "random math string re json collections dataclasses itertools functools enum typing heapq bisect copy textwrap "  # noqa: SIM905
    "statistics fractions decimal operator abc numpy gymnasium __future__".split()
)


class _ScannerContext:
    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


_scan: Any = _json.make_scanner(_ScannerContext())  # type: ignore[arg-type] # what it reads, and no more
_quote = _json.encode_basestring


class EnvironmentFaultError(Exception):
    """What the environment did against its contract: kind and text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def encode(value: object) -> str:
    """JSON of str, bool, int, float and lists of them."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is str:
        return _quote(value)
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is float:
        return float.__repr__(value)
    assert isinstance(value, (list, tuple))
    return "[" + ",".join([encode(item) for item in value]) + "]"


def read_exactly(descriptor: int, size: int, buffer: bytes = b"") -> bytes | None:
    """`size` bytes, or None at the end of the stream."""
    while len(buffer) < size:
        chunk = posix.read(descriptor, size - len(buffer))
        if not chunk:
            return None
        buffer += chunk
    return buffer


def read_frame(descriptor: int) -> Any:
    """The next frame, decoded, or None where the host has closed. The host sends one and waits: nothing stands behind it."""
    begun = posix.read(descriptor, CHUNK)
    buffer = read_exactly(descriptor, 4, begun) if begun else None
    if buffer is None:
        return None
    size = int.from_bytes(buffer[:4], "big")
    if size > MAX_FRAME:
        return None
    frame = read_exactly(descriptor, 4 + size, buffer)
    return None if frame is None else _scan(frame[4:].decode(), 0)[0]


def make_frame(*parts: object) -> bytes:
    """A reply as it goes over the wire."""
    body = encode(parts).encode()
    return len(body).to_bytes(4, "big") + body


def send_frame(descriptor: int, *parts: object) -> None:
    """Sends one reply."""
    frame = make_frame(*parts)
    sent = posix.write(descriptor, frame)
    while sent < len(frame):
        sent += posix.write(descriptor, frame[sent:])


# --- the zygote ---------------------------------------------------------------------------------------------------------


class Kernel:
    """The C functions prctl and setrlimit with the blocks of memory that they read, by the extension module alone: the ctypes
    package would cost more than a fork, the resource module a shared object more."""

    def __init__(self) -> None:
        import _ctypes

        class Long(_ctypes._SimpleCData):  # type: ignore[type-arg] # generic for type checkers only
            _type_ = "l"

        class Byte(_ctypes._SimpleCData):  # type: ignore[type-arg] # the same
            _type_ = "c"

        class Function(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL
            _restype_ = Long
            _argtypes_ = (Long, Long, Long, Long, Long)

        program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # None is the program itself
        self.prctl = Function(_ctypes.dlsym(program, "prctl"))
        self.setrlimit = Function(_ctypes.dlsym(program, "setrlimit"))
        self.signal = Function(_ctypes.dlsym(program, "signal"))
        self.leave: int = _ctypes.dlsym(program, "_exit")
        self._byte: Any = Byte
        self._address = _ctypes.addressof
        self._kept: list[object] = []
        self._limits: dict[tuple[int, int], int] = {}
        self.filter = self._make_filter()

    def limit(self, soft: int, hard: int) -> int:
        """The address of a struct rlimit, which stays."""
        if (soft, hard) not in self._limits:
            self._limits[soft, hard] = self._keep(soft.to_bytes(8, sys.byteorder) + hard.to_bytes(8, sys.byteorder))
        return self._limits[soft, hard]

    def _make_filter(self) -> int:
        """The strict filter: the address of a seccomp program that kills the child on what only the zygote may do."""
        machine = posix.uname().machine
        numbers = CHILD_DENIED[machine]
        code = [(0x20, 0, 0, 4), (0x15, 1, 0, AUDIT_ARCH[machine]), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
        for position, number in enumerate(numbers):
            code.append((0x15, len(numbers) - position, 0, number))
        code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)]
        order = sys.byteorder
        lines = [what.to_bytes(2, order) + bytes((yes, no)) + value.to_bytes(4, order) for what, yes, no, value in code]
        address = self._keep(b"".join(lines))
        return self._keep(len(code).to_bytes(8, order) + address.to_bytes(8, order))

    def _keep(self, content: bytes) -> int:
        block = (self._byte * len(content)).from_buffer_copy(content)
        self._kept.append(block)
        return self._address(block)


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
        kernel.setrlimit(RLIMIT_CPU, kernel.limit(COMPILE_CPU_S, JAIL_CPU_S), 0, 0, 0)
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
            child.serve(self)
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
            operation, *arguments = _scan(body.decode(), 0)[0]
            if operation == "load":
                self.load(*arguments)
            elif operation == "fork":
                self.fork(arguments[0], int.from_bytes(ancillary[0][2], sys.byteorder), *arguments[1:])
            elif operation == "status":
                self.tell_status(*arguments)


# --- a child ------------------------------------------------------------------------------------------------------------


def describe(error: BaseException) -> str:
    """An exception as one short line with the source's line number; never raises, whatever the exception is."""
    try:
        line = 0
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "environment":
                line = trace.tb_lineno
            trace = trace.tb_next
        text = str(error)[:300].encode("utf-8", "backslashreplace").decode()
        return f"{type(error).__name__} in line {line}: {text}"
    except BaseException:  # noqa: BLE001 - the boundary to hostile code
        return "an exception that can't be shown"


def check_text(value: object, what: str) -> str:
    """`value` where it is built-in text that UTF-8 can carry."""
    if type(value) is not str:
        raise EnvironmentFaultError("types", f"{what} is a {type(value).__name__}, expected str")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise EnvironmentFaultError("types", f"{what} holds surrogates") from None
    if size > MAX_TEXT:
        raise EnvironmentFaultError("size", f"{what} has {size} bytes, allowed are {MAX_TEXT}")
    return value


def check_info(value: object) -> bool:
    """Whether info is empty."""
    if type(value) is not dict:
        raise EnvironmentFaultError("types", f"info is a {type(value).__name__}, expected dict")
    return not value


def check_flag(value: object, what: str) -> bool:
    """`value` where it is a bool."""
    if type(value) is not bool:
        raise EnvironmentFaultError("types", f"{what} is a {type(value).__name__}, expected bool")
    return value


def check_reward(value: Any) -> float:
    """The reward as a finite float."""
    if type(value) not in (float, int):
        raise EnvironmentFaultError("types", f"reward is a {type(value).__name__}, expected float")
    if value != value or value in (INFINITY, -INFINITY) or not -1e300 < value < 1e300:
        raise EnvironmentFaultError("nonfinite", "reward is not a finite number")
    return float(value)


class Child:
    """One episode's process: the environment object and its channel."""

    def __init__(self, channel: int, session: int, max_turns: int) -> None:
        self.channel = channel
        self.session = session
        self.max_turns = max_turns
        self.greeting = make_frame("made", session)
        self.made: Any = None
        self.environment: Any = None

    def guard(self, call: Any, *arguments: object) -> Any:
        """Runs environment code; whatever it raises becomes an EnvironmentFaultError."""
        try:
            return call(*arguments)
        except MemoryError:
            raise EnvironmentFaultError("memory", "out of memory") from None
        except BaseException as error:  # noqa: BLE001 - the boundary to hostile code
            raise EnvironmentFaultError("raised", describe(error)) from None

    def run_module(self, code: types.CodeType | None) -> None:
        """Executes the source in a module of its own and finds its one class."""
        module = type(sys)("environment")
        sys.modules["environment"] = module
        self.guard(exec, code, module.__dict__)
        found = [
            value
            for name, value in list(module.__dict__.items())
            if isinstance(value, type) and name.endswith("Env") and value.__module__ == "environment"
        ]
        if len(found) != 1:
            raise EnvironmentFaultError("types", f"{len(found)} classes whose name ends in Env, expected 1")
        self.made = found[0]

    def make(self) -> Any:
        """A new environment object."""
        return self.guard(self.made, self.max_turns)

    def reset(self, seed: int) -> tuple[str, bool]:
        """(observation, info_empty)"""
        result = self.guard(lambda: self.environment.reset(seed=seed))
        if type(result) is not tuple or len(result) != 2:
            raise EnvironmentFaultError("types", "reset did not return (str, dict)")
        return check_text(result[0], "the first observation"), check_info(result[1])

    def step(self, action: str) -> tuple[str, float, bool, bool, bool]:
        """(observation, reward, terminated, truncated, info_empty)"""
        result = self.guard(lambda: self.environment.step(action))
        if type(result) is not tuple or len(result) != 5:
            raise EnvironmentFaultError("types", "step did not return (str, float, bool, bool, dict)")
        observation, reward, terminated, truncated, info = result
        return (
            check_text(observation, "an observation"),
            check_reward(reward),
            check_flag(terminated, "terminated"),
            check_flag(truncated, "truncated"),
            check_info(info),
        )

    def solve(self, seed: int) -> tuple[list[str]]:
        """The witness's actions for one seed, from a new object."""
        self.environment = self.make()
        self.reset(seed)
        actions = self.guard(lambda: self.environment.solution())
        if type(actions) is not list or len(actions) > MAX_ACTIONS:
            raise EnvironmentFaultError("types", f"solution did not return a list of at most {MAX_ACTIONS} actions")
        return ([check_text(action, "an action of solution") for action in actions],)

    def serve(self, zygote: Zygote) -> None:
        """Answers until the host closes or the environment fails."""
        frame = self.session
        try:
            if zygote.fault is not None:
                raise zygote.fault
            self.run_module(zygote.code)
            self.environment = self.make()
            posix.write(self.channel, self.greeting)
            operations: dict[str, Any] = {"reset": self.reset, "step": self.step, "solve": self.solve}
            names = {"reset": "began", "step": "stepped", "solve": "solved"}
            while True:
                request = read_frame(self.channel)
                if request is None:
                    return
                operation, frame, argument = request
                reply = operations[operation](argument)
                send_frame(self.channel, names[operation], frame, *reply)
        except EnvironmentFaultError as fault:
            send_frame(self.channel, "failed", frame, fault.kind, fault.text)


def main() -> None:
    """The jail's entry point."""
    gc.disable()  # the zygote makes no garbage that matters; a child turns it on before it runs the source
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, CONTROL_FD)
    Zygote(control).serve()
