"""Attacks on the kernel: what only attacks ask for, other ways into it, and what a child has no use for. See base.Attack."""

from __future__ import annotations

from typing import Final

from workers.sandbox.attacks.base import Attack, Barrier, Layer, program, raw_program

_KILLED: Final = (Layer(Barrier.ALLOW_LIST, "ends seccomp"),)
_REFUSED: Final = (Layer(Barrier.ALLOW_LIST, "says EPERM"),)
_CHILD: Final = Barrier.CHILD_FILTER

# name, arguments, what the kernel itself answers (its beginning) with the filter away
_FOR_ATTACKS: Final = (
    ("ptrace", "0, 0, 0, 0", "0"),
    ("mount", "0, room(8, b'/')[1], 0, 4096, 0", "E"),
    ("umount2", "room(8, b'/')[1], 2", "E"),
    ("pivot_root", "room(8, b'/')[1], room(8, b'/')[1]", "E"),
    ("unshare", "0x20000000", ""),
    ("setns", "0, 0", "E"),
    ("bpf", "0, 0, 0", "E"),
    ("io_uring_setup", "1, room(128)[1]", ""),
    ("keyctl", "0, -3, 0", ""),
    ("add_key", "room(8, b'user')[1], room(8, b'x')[1], room(8, b'x')[1], 1, -3", ""),
    ("perf_event_open", "room(128)[1], 0, -1, -1, 0", "E"),
    ("process_vm_readv", "1, 0, 0, 0, 0, 0", ""),
    ("userfaultfd", "1", ""),
    ("init_module", "0, 0, 0", "E"),
    ("kexec_load", "0, 0, 0, 0", "E"),
    ("swapon", "room(8, b'/x')[1], 0", "E"),
    ("quotactl", "0, 0, 0, 0", "E"),
    ("acct", "0", "E"),
    ("settimeofday", "room(16)[1], 0", "E"),
    ("sethostname", "room(8, b'x')[1], 1", "E"),
)
_FOR_NOBODY_HERE: Final = (
    ("sched_setscheduler", "0, 3, room(8)[1]", "0"),
    ("setitimer", "0, room(32)[1], 0", "0"),
    ("timer_create", "1, 0, room(8)[1]", ""),
    ("memfd_create", "room(8, b'x')[1], 0", ""),
    ("inotify_init1", "0", ""),
    ("pidfd_open", "1, 0", ""),
    ("personality", "0xffffffff", ""),
    ("eventfd2", "0, 0", ""),
    ("epoll_create1", "0", ""),
    ("landlock_create_ruleset", "0, 0, 1", ""),
    ("splice", "0, 0, 0, 0, 1, 0", ""),
    ("mlock", "room(4096)[1], 4096", "0"),
    ("mq_open", "room(8, b'x')[1], 0, 0, 0", "E"),
    # a pipe of notifications by the kernel has been a way into it
    ("pipe2", "room(8)[1], 128", ""),
    ("membarrier", "1, 0, 0", "0"),
)

_CODE: Final = """
written, address = room(64, CODE)
# the library's own function: a page of its own, readable, writable and to be executed
def library(name, *arguments):
    return Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), name))(*[Long(argument) for argument in arguments])
page = library("mmap", 0, 4096, 7, 34, -1, 0)
library("memcpy", page, address, 64)
result = Function(page)()
"""

ATTACKS: Final = (
    *(
        Attack(f"ask for {name}", _KILLED, raw_program(f"result = call(<{name}>, {arguments})"), f"says {answer}")
        for name, arguments, answer in _FOR_ATTACKS
    ),
    *(
        Attack(f"ask for {name}", _REFUSED, raw_program(f"result = call(<{name}>, {arguments})"), f"says {answer}")
        for name, arguments, answer in _FOR_NOBODY_HERE
    ),
    Attack("become root", _REFUSED, program("result = attempt(lambda: os.setuid(0))"), "says EINVAL", "no such user is mapped"),
    Attack("change the own priority", _REFUSED, program("result = attempt(lambda: os.nice(0))"), "says 5"),
    Attack(
        "choose a processor",
        _REFUSED,
        program("result = attempt(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))"),
        "says None",
    ),
    Attack(
        "start a program",
        (Layer(_CHILD, "ends seccomp"),),
        program("result = attempt(lambda: os.execv('/bin/nothing', ['nothing']))"),
        "says ENOENT",
    ),
    Attack(
        "start a program by a descriptor",
        (Layer(_CHILD, "ends seccomp"), Layer(Barrier.ALLOW_LIST, "says EPERM")),
        raw_program("result = call(<execveat>, 0, room(8)[1], 0, 0, 4096)"),
        "says EACCES",
    ),
    Attack(
        "hide a process by clone3",
        (Layer(_CHILD, "ends seccomp"), Layer(Barrier.ALLOW_LIST, "says ENOSYS")),
        raw_program("result = call(<clone3>, 0, 0)"),
        "says EINVAL",
    ),
    Attack(
        "ask to outlive the parent",
        (Layer(_CHILD, "ends seccomp"),),
        raw_program("result = call(<prctl>, 1, 0, 0, 0, 0)"),
        "says 0",
    ),
    Attack(
        "put a filter over the filter",
        (Layer(_CHILD, "ends seccomp"),),
        raw_program("result = call(<seccomp>, 1, 0, 0)"),
        "says EFAULT",
    ),
    Attack(
        "type into a terminal",
        _REFUSED,
        raw_program("result = call(<ioctl>, 0, 0x5412, room(8, b'x')[1])"),
        "says ENOTTY",
        "there is no terminal, which answers next",
    ),
    Attack(
        "watch a folder by signals",
        _REFUSED,
        raw_program("result = call(<fcntl>, os.open('/', 0), 1026, 0)"),
        "says 0",
    ),
    Attack(
        "name system calls by the x32 table",
        _REFUSED,
        raw_program("result = call((0x40000000 | 41, 0), 1, 1, 0)"),
        "says ENOSYS",
        "the kernel answers next, where it is built without that table",
        machine="x86_64",
    ),
    Attack(
        "name system calls by the 32-bit table",
        (Layer(_CHILD, "ends seccomp"),),
        # mov eax, 2 (fork); int 0x80; ret
        raw_program(_CODE.replace("CODE", repr(bytes.fromhex("b802000000cd80c3")))),
        note="both filters look at the architecture first: without one the other gives the same end",
        machine="x86_64",
    ),
    Attack(
        "make a system call by own machine code",
        (Layer(_CHILD, "ends seccomp"), Layer(Barrier.ALLOW_LIST, "says -1")),
        # mov eax, 41 (socket); mov edi, 77; xor esi, esi; xor edx, edx; syscall; ret
        raw_program(_CODE.replace("CODE", repr(bytes.fromhex("b829000000bf4d00000031f631d20f05c3")))),
        "says -97",
        "no such family of sockets: the kernel answers",
        machine="x86_64",
    ),
)
