"""What an attack is: a hostile program, the barriers that stop it one behind the other, and what it would reach without them.

In: nothing. Out: the types and the text from which the attack modules make their programs. Who calls: those modules, `drill`,
the tests. Attacks are harmless by construction: without any barrier they read a canary, make a process that ends, or fill some
memory.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from workers.sandbox.base import Limits


class Barrier(StrEnum):
    """What holds. The value is what a person reads."""

    CHILD_FILTER = "filter of the episode"
    ALLOW_LIST = "system calls of the jail"
    NETWORK = "network namespace"
    IPC = "IPC namespace"
    UTS = "host name of its own"
    PRIVATE_ROOT = "private root"
    READ_ONLY = "read-only root"
    OWNER = "outside user of its own"
    NO_PROC = "no /proc"
    ENVIRONMENT = "empty environment"
    DESCRIPTORS = "closed descriptors"
    CONTROL = "closed control channel"
    PROCESS = "a process for each episode"
    KILL = "end by the host"
    ADDRESS_SPACE = "address space limit"
    MEMORY = "memory of the jail"
    PIDS = "processes of the jail"
    NPROC = "processes of the user"
    OPEN_FILES = "open files limit"
    CALL_CPU = "CPU time of a call"
    CALL_TIME = "wall time of a call"
    SESSION_CPU = "CPU time of the session"
    COMPILE_CPU = "CPU time of the compiler"
    STEPS = "steps of the session"
    TEXT_SIZE = "size of a text"
    FRAME_SIZE = "size of a frame"
    STRICT_DECODING = "strict decoding"
    MATCH = "reply must fit its request"
    NOTHING_UNASKED = "nothing unasked"
    OUTPUT = "output goes nowhere"
    LOG_SEAL = "sealed log"


class Layer(NamedTuple):
    """A barrier, and the outcome (its beginning) as long as it stands and those before it do not."""

    barrier: Barrier
    outcome: str


QUICK: Final = Limits(cpu_s=3, make_s=0.5, reset_s=0.5, step_s=0.5)


@dataclass(frozen=True)
class Attack:
    """`layers`: what stops it, first to last. `effect`: the outcome (its beginning) with all of them away, empty where the last
    one is never taken away; `note` says why, or what answers in its place. `program`: the source; words of `canaries` in it are
    filled in. `steps`: how often it is stepped. `bystander`: whether a second session of the same source has to come out
    unharmed. `machine`: the only processor it is written for. `rootless`: the outcome at that level, where a jail's user owns its
    root's files.

    An outcome is "says TEXT" (what the step replied), "ends REASON: EVIDENCE", or "raises TYPE" where something else than the
    typed end reached the caller."""

    name: str
    layers: tuple[Layer, ...]
    program: str
    effect: str = ""
    note: str = ""
    steps: int = 1
    limits: Limits = QUICK
    bystander: bool = False
    machine: str = ""
    rootless: str = ""

    @property
    def barrier(self) -> Barrier:
        """The one that stops it."""
        return self.layers[0].barrier

    @property
    def deadline_s(self) -> float:
        """What a session may take at most, from asking for it to its end: a slow start, and the patience with one call on a busy
        machine."""
        return self.limits.start_s + self.limits.patience * self.limits.step_s

    def expected(self, level: str = "full") -> str:
        """The outcome (its beginning) that the first barrier has to give at a level."""
        return self.rootless if self.rootless and level == "rootless" else self.layers[0].outcome

    def held(self, outcome: str, level: str = "full") -> bool:
        """Whether an outcome is the one that the first barrier has to give at a level."""
        return outcome.startswith(self.expected(level))

    def runs_here(self) -> bool:
        """Whether this machine's processor is one that it is written for."""
        return self.machine in ("", platform.machine())


_SHAPE: Final = """
import errno, math, os, sys, time
def attempt(what):
    try:
        return what()
    except OSError as error:
        return errno.errorcode[error.errno]
{prelude}
class HostileEnv:
    def __init__(self, max_turns=25):
        pass
    def reset(self, seed=None):
        return "ready", {{}}
    def step(self, action):
        if action == "look":
            return getattr(math, "left", "here"), 0.0, False, False, {{}}
        result = None
{body}
        return str(result), 0.0, False, False, {{}}
"""
# raw system calls by the extension module that the jail's root holds for its own runner
_RAW: Final = """
import _ctypes, array
class Long(_ctypes._SimpleCData):
    _type_ = "l"
class Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | 8
    _restype_ = Long
_syscall = Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall"))
def call(numbers, *arguments):
    number = numbers[os.uname().machine == "aarch64"]
    value = _syscall(Long(number), *[Long(argument) for argument in arguments])
    return value if value >= 0 else errno.errorcode[_ctypes.get_errno()]
rooms = []
def room(size, begin=b""):
    kept = array.array("B", begin.ljust(size, b"\\0"))
    rooms.append(kept)
    return kept, kept.buffer_info()[0]
def channel():
    for number in range(4, 24):
        try:
            os.fstat(number)
            return number
        except OSError:
            continue
"""
# frames as the runner would send them
_FORGE: Final = (
    _RAW
    + """
import struct
def request():
    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("request"), list):
        frame = frame.f_back
    return frame.f_locals["request"][1]
def send(body, size=None):
    body = body.replace(b"ID", str(request()).encode())
    rest = struct.pack(">I", len(body) if size is None else size) + body
    while rest:
        rest = rest[os.write(channel(), rest):]
"""
)
# x86_64, aarch64
CALLS: Final = {
    "accept": (43, 202), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bind": (49, 200), "bpf": (321, 280),
    "clock_gettime": (228, 113), "clock_settime": (227, 112), "clone3": (435, 435), "connect": (42, 203),
    "epoll_create1": (291, 20), "eventfd2": (290, 19), "execveat": (322, 281), "fanotify_init": (300, 262), "fcntl": (72, 25),
    "finit_module": (313, 273), "flock": (73, 32), "getsockopt": (55, 209), "init_module": (175, 105), "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "kcmp": (312, 272), "kexec_load": (246, 104), "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444), "listen": (50, 201), "membarrier": (324, 283), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "mlock": (149, 228), "mmap": (9, 222), "mount": (165, 40), "mq_open": (240, 180),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "perf_event_open": (298, 241), "personality": (135, 92),
    "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pipe2": (293, 59), "pivot_root": (155, 41), "prctl": (157, 167),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "sched_setscheduler": (144, 119), "seccomp": (317, 277),
    "sendto": (44, 206), "setdomainname": (171, 162), "sethostname": (170, 161), "setitimer": (38, 103), "setns": (308, 268),
    "setsockopt": (54, 208), "settimeofday": (164, 170), "shmget": (29, 194), "splice": (275, 76), "swapoff": (168, 225),
    "swapon": (167, 224), "sysinfo": (99, 179), "syslog": (103, 116), "tgkill": (234, 131), "timer_create": (222, 107),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip


def program(body: str) -> str:
    """A source whose step runs `body`, which leaves its finding in `result`. `attempt(function)`: its value, or its OSError's
    name."""
    return _shape("", body)


def raw_program(body: str) -> str:
    """The same with `call(<NAME>, ...)` for raw system calls, which gives the value or the error's name. A name of CALLS in angle
    brackets stands for its numbers; `room(size, begin)` gives a buffer and its address; `channel()` the session's descriptor."""
    return _shape(_RAW, _numbered(body))


def forging_program(body: str) -> str:
    """The same with `send(frame, size)`, in which ID stands for that of the request that is being answered."""
    return _shape(_FORGE, _numbered(body))


def _numbered(body: str) -> str:
    for name, numbers in CALLS.items():
        body = body.replace(f"<{name}>", repr(numbers))
    return body


def _shape(prelude: str, body: str) -> str:
    return _SHAPE.format(prelude=prelude, body="\n".join("        " + line for line in body.strip().splitlines()))
