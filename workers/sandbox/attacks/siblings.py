"""Attacks on others and on the time after: sessions of the same source, the zygote, other jails, what outlives an episode. See
base.Attack."""

from __future__ import annotations

from typing import Final

from workers.sandbox.attacks.base import Attack, Barrier, Layer, forging_program, program, raw_program

_REFUSED: Final = (Layer(Barrier.ALLOW_LIST, "says EPERM"),)
_KILLED: Final = (Layer(Barrier.ALLOW_LIST, "ends seccomp"),)
_FORKING: Final = (Layer(Barrier.CHILD_FILTER, "ends seccomp"),)
_OWN: Final = (Layer(Barrier.PROCESS, "says done"),)
_ALONE: Final = "without a process of its own there is no session"
# the bystander's process was made just before
_SIBLING: Final = "os.getpid() - 1"
_SIGNAL_BY_OWNER: Final = """
result = call(<fcntl>, channel(), 8, {pid})
call(<fcntl>, channel(), 10, 9)
"""
_SIGNAL_BY_IOCTL: Final = """
result = call(<ioctl>, channel(), 0x8901, room(8, ({pid}).to_bytes(4, "little"))[1])
"""
# signals are asked for, and the next request comes while nobody waits for it: where that is granted, reads don't block
_LET_THEM_COME: Final = """
call(<fcntl>, channel(), 4, 0o24002)
identity = request()
while True:
    body = b'["stepped",%d,"%s",0.0,false,false,true]' % (identity, str(result).encode())
    os.write(channel(), struct.pack(">I", len(body)) + body)
    asked = None
    while asked is None:
        try:
            asked = os.read(channel(), 4096)
        except BlockingIOError:
            time.sleep(0.01)
    identity = int(asked[4:].split(b",")[1])
"""
_FORGED: Final = """send(b'["stepped",ID,"done",0.0,false,false,true]')"""

ATTACKS: Final = (
    Attack(
        "kill a sibling",
        _REFUSED,
        program(f"result = attempt(lambda: os.kill({_SIBLING}, 9))"),
        "says None, bystander lost",
        bystander=True,
    ),
    Attack(
        "kill everybody",
        _REFUSED,
        program("result = attempt(lambda: os.kill(-1, 9))"),
        "says None, bystander lost",
        bystander=True,
    ),
    Attack(
        "kill the zygote",
        _REFUSED,
        program("result = attempt(lambda: os.kill(1, 9))"),
        "says None",
        "the first process of a namespace can't be killed from within",
        bystander=True,
    ),
    Attack(
        "kill a sibling by a queued signal",
        _REFUSED,
        raw_program(
            f"result = call(<rt_sigqueueinfo>, {_SIBLING}, 9, room(128, bytes([9, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]))[1])"
        ),
        "says 0, bystander lost",
        bystander=True,
    ),
    Attack(
        "kill a sibling as owner of a descriptor",
        _REFUSED,
        forging_program(_SIGNAL_BY_OWNER.format(pid=_SIBLING) + _LET_THEM_COME),
        "says 0, bystander lost",
        steps=2,
        bystander=True,
    ),
    Attack(
        "die as if from outside",
        _REFUSED,
        forging_program(_SIGNAL_BY_OWNER.format(pid="os.getpid()") + _LET_THEM_COME),
        "ends died",
        steps=2,
        bystander=True,
    ),
    Attack(
        "signal a sibling by an ioctl of the channel",
        _REFUSED,
        forging_program(_SIGNAL_BY_IOCTL.format(pid=_SIBLING) + _LET_THEM_COME),
        "says 0, bystander lost",
        steps=2,
        bystander=True,
    ),
    Attack(
        "read a sibling's memory",
        _KILLED,
        raw_program(f"result = call(<process_vm_readv>, {_SIBLING}, 0, 0, 0, 0, 0)"),
        "says 0",
        bystander=True,
    ),
    Attack(
        "trace a sibling",
        _KILLED,
        raw_program(f"result = call(<ptrace>, 16902, {_SIBLING}, 0, 0)"),
        "says 0",
        bystander=True,
    ),
    Attack(
        "hold a sibling's process",
        _REFUSED,
        raw_program(f"result = call(<pidfd_open>, {_SIBLING}, 0)\nresult = 'held' if type(result) is int else result"),
        "says held",
        bystander=True,
    ),
    Attack(
        "read another process's clock",
        _REFUSED,
        raw_program("result = call(<clock_gettime>, ~1 << 3 | 2, room(16)[1])"),
        "says 0",
    ),
    Attack(
        "meet other jails on a shared page",
        _REFUSED,
        raw_program(
            "result = call(<mmap>, 0, 4096, 1, 1, os.open('/bin/python3', 0), 0)\n"
            "result = 'mapped' if type(result) is int else result"
        ),
        "says mapped",
    ),
    Attack(
        "meet other jails by a lock on a file",
        _REFUSED,
        raw_program("result = call(<fcntl>, os.open('/bin/python3', 0), 6, room(64)[1])"),
        "says 0",
    ),
    Attack(
        "meet other jails by a lock on a whole file",
        _REFUSED,
        raw_program("result = call(<flock>, os.open('/bin/python3', 0), 1)"),
        "says 0",
    ),
    Attack(
        "reach the control channel",
        (Layer(Barrier.CONTROL, "says EBADF"),),
        program("result = attempt(lambda: len(os.fstat(3)))"),
        "says 10",
    ),
    Attack(
        "fork",
        _FORKING,
        program("one = os.fork()\nif not one:\n    os._exit(0)\nresult = 'forked'"),
        "says forked",
    ),
    Attack(
        "start a thread",
        _FORKING,
        program("import _thread\n_thread.start_new_thread(len, ('',))\nresult = 'started'"),
        "says started",
    ),
    Attack("leave the session", _REFUSED, program("result = attempt(lambda: os.setsid())"), "says "),
    Attack(
        "wait for a sibling's end",
        _FORKING,
        program("try:\n    result = os.wait4(-1, os.WNOHANG)\nexcept ChildProcessError:\n    result = 'none'"),
        "says none",
        bystander=True,
    ),
    Attack("leave a trace in a module", _OWN, program("math.left = 'changed'\nresult = 'done'"), note=_ALONE, bystander=True),
    Attack(
        "leave a trace in the runner",
        _OWN,
        program("import spade_runner\nspade_runner.Child.step = lambda *_: 1 / 0\nresult = 'done'"),
        note=_ALONE,
        bystander=True,
    ),
    Attack(
        "leave work for the end",
        _OWN,
        program("class Late:\n    def __del__(self):\n        time.sleep(60)\nmath.kept = Late()\nresult = 'done'"),
        note=_ALONE,
        bystander=True,
    ),
    Attack(
        "work on after the reply",
        (Layer(Barrier.KILL, "says done"),),
        forging_program(_FORGED + "\nwhile True:\n    pass"),
        note="a process that works on would have to be left running",
    ),
    Attack(
        "sleep on after the reply and ignore signals",
        (Layer(Barrier.KILL, "says done"),),
        forging_program(
            "import signal\nfor number in range(1, 32):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
            "    except (OSError, ValueError):\n        pass\n" + _FORGED + "\nwhile True:\n    time.sleep(60)"
        ),
        note="a process that sleeps on would have to be left running",
    ),
)
