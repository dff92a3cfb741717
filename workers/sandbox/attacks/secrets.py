"""Attacks on what a jail may not know: the host's network, descriptors, memory, variables, load. See base.Attack."""

from __future__ import annotations

from typing import Final

from workers.sandbox.attacks.base import Attack, Barrier, Layer, program, raw_program

_REFUSED: Final = (Layer(Barrier.ALLOW_LIST, "says EPERM"),)
_SOCKETS: Final = (Layer(Barrier.CHILD_FILTER, "ends seccomp"), Layer(Barrier.ALLOW_LIST, "says EPERM"))
_CONNECT: Final = """
import _socket
def connect():
    one = _socket.socket({family}, 1)
    one.connect({address})
    return "connected"
result = attempt(connect)
"""
_OWN_SOCKET: Final = "import _socket\none = _socket.socket(1, 1, 0, channel())\n"
_OPEN: Final = """
def look(number):
    try:
        os.fstat(number)
        return True
    except OSError:
        return False
others = [number for number in range(4, 24) if look(number)][1:]
result = [os.pread(number, 8, 0) for number in others]
"""

ATTACKS: Final = (
    Attack(
        "read a variable of the host",
        (Layer(Barrier.ENVIRONMENT, "says absent"),),
        program("result = os.environ.get('CANARY_VARIABLE', 'absent')"),
        "says CANARY",
    ),
    Attack(
        "read inherited descriptors",
        (Layer(Barrier.DESCRIPTORS, "says []"),),
        program(_OPEN),
        "says [b'",
    ),
    Attack(
        "reach a server on loopback",
        (*_SOCKETS, Layer(Barrier.NETWORK, "says ENETUNREACH")),
        program(_CONNECT.format(family=2, address="('127.0.0.1', CANARY_PORT)")),
        "says connected",
    ),
    Attack(
        "reach an abstract socket",
        (*_SOCKETS, Layer(Barrier.NETWORK, "says ECONNREFUSED")),
        program(_CONNECT.format(family=1, address="'\\0CANARY_SOCKET'")),
        "says connected",
    ),
    Attack(
        "reach the network by a raw socket",
        _SOCKETS,
        program("import _socket\nresult = attempt(lambda: _socket.socket(17, 3))"),
        "says EPERM",
        "no capability is left, which answers next",
    ),
    Attack(
        "make a pair of sockets",
        _SOCKETS,
        program("import _socket\nresult = attempt(lambda: len(_socket.socketpair()))"),
        "says 2",
    ),
    Attack(
        "pass a descriptor on",
        _SOCKETS,
        raw_program(_OWN_SOCKET + "result = attempt(lambda: one.sendmsg([], [], 0))\none.detach()"),
        "says 0",
    ),
    Attack(
        "take a descriptor in",
        (Layer(Barrier.CHILD_FILTER, "ends seccomp"),),
        raw_program(_OWN_SOCKET + "result = attempt(lambda: one.recvmsg(1, 64, 64))\none.detach()"),
        "says EAGAIN",
    ),
    Attack(
        "send to an address",
        _REFUSED,
        raw_program(
            "result = call(<sendto>, channel(), room(1)[1], 1, 0, room(110, bytes([1, 0, 0]) + b'CANARY_SOCKET')[1], 40)"
        ),
        "says EISCONN",
        "the channel is a stream, which answers next",
    ),
    Attack(
        "name the own channel in the host's network",
        _REFUSED,
        raw_program("result = call(<bind>, channel(), room(110, bytes([1, 0, 0]) + b'spade-bound')[1], 14)"),
        "says ",
        "newer kernels name no connected socket",
    ),
    Attack(
        "send out of band",
        _REFUSED,
        raw_program("result = call(<sendto>, channel(), room(1)[1], 0, 1, 0, 0)"),
        "says E",
        "a message of no bytes, the kernel answers",
    ),
    # the channel's socket was made by the host: its namespace is the host's
    Attack(
        "see the state of the host's interfaces",
        _REFUSED,
        raw_program(
            "kept, place = room(40, b'lo')\nresult = call(<ioctl>, channel(), 0x8913, place)\n"
            "result = result if result else 'up' if kept[16] & 1 else 'down'"
        ),
        "says up",
    ),
    Attack(
        "list the host's interfaces",
        _REFUSED,
        raw_program(
            "kept, place = room(40)\nkept[16] = 1\nresult = call(<ioctl>, channel(), 0x8910, place) or kept[:2].tobytes()"
        ),
        "says b'lo'",
    ),
    Attack(
        "get hold of the host's process",
        _REFUSED,
        raw_program("result = call(<getsockopt>, channel(), 1, 77, room(8)[1], room(8, bytes([4]))[1])"),
        "says ",
        "kernels before 6.5 have no such option",
    ),
    Attack(
        "ask who the host is",
        _REFUSED,
        raw_program("result = call(<getsockopt>, channel(), 1, 17, room(16)[1], room(8, bytes([12]))[1])"),
        "says 0",
    ),
    Attack(
        "change the channel",
        _REFUSED,
        raw_program("result = call(<setsockopt>, channel(), 1, 16, room(8, bytes([1]))[1], 4)"),
        "says 0",
    ),
    Attack(
        "attach the host's shared memory",
        (*_REFUSED, Layer(Barrier.IPC, "says ENOENT")),
        raw_program("result = call(<shmget>, CANARY_KEY, 0, 0)\nresult = 'attached' if type(result) is int else result"),
        "says attached",
    ),
    Attack(
        "read the host's name",
        (Layer(Barrier.UTS, "says jail"),),
        program("result = os.uname().nodename\nresult = result if result == 'jail' else 'seen'"),
        "says seen",
    ),
    Attack(
        "read the machine's load and memory",
        _REFUSED,
        raw_program("result = call(<sysinfo>, room(256)[1])"),
        "says 0",
    ),
)
