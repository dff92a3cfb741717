"""What the jail's processes ask of the kernel: limits, signals, and the filter that each episode puts on itself."""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Syscalls that the zygote needs and no child may use; the jail's own allow-list (seccomp.kafel) stops all others.
CHILD_DENIED = {
    "x86_64": (56, 57, 58, 435, 59, 322, 157, 317, 46, 47, 61, 247, 160, 302, 53, 41),
    "aarch64": (220, 435, 221, 281, 167, 277, 211, 212, 260, 95, 164, 261, 199, 198),
}


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
