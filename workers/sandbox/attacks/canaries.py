"""Canaries: things of this host that no jail may ever reach. They tell whether one did.

In: nothing. Out: words that attack programs are filled with, and what was touched. Who calls: drill.py, tests.
Owns two listening sockets, a file, a descriptor, a variable and (where the kernel has them) a shared memory segment until
`close`.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

VARIABLE: Final = "SPADE_CANARY"
IPC_CREAT_OPEN: Final = 0o1666
IPC_RMID: Final = 0


class Canaries:
    """A context manager. Raises OSError where the machine has no loopback."""

    def __init__(self) -> None:
        self.word = secrets.token_hex(12)
        self.folder = Path(tempfile.mkdtemp(prefix="spade-canary-"))
        self.folder.chmod(0o755)
        self.file = self.folder / "canary"
        self.file.write_text(self.word)
        self.file.chmod(0o644)
        self.descriptor = os.open(self.file, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        os.environ[VARIABLE] = self.word
        self._loopback = socket.create_server(("127.0.0.1", 0))
        self._abstract = socket.socket(socket.AF_UNIX)
        self.abstract = f"spade-{self.word}"
        self._abstract.bind("\0" + self.abstract)
        self._abstract.listen()
        self._libc = ctypes.CDLL(None)
        self.key = secrets.randbelow(1 << 30) + 1
        self._segment = self._libc.shmget(self.key, 4096, IPC_CREAT_OPEN)

    def fill(self, source: str) -> str:
        """A program with the canaries' places in it."""
        return (
            source.replace("CANARY_FILE", str(self.file))
            .replace("CANARY_FOLDER", str(self.folder))
            .replace("CANARY_PORT", str(self._loopback.getsockname()[1]))
            .replace("CANARY_SOCKET", self.abstract)
            .replace("CANARY_VARIABLE", VARIABLE)
            .replace("CANARY_KEY", str(self.key))
        )

    def touched(self) -> list[str]:
        """Which servers somebody reached since the last call."""
        found = []
        for name, server in (("the loopback server", self._loopback), ("the abstract socket", self._abstract)):
            server.setblocking(False)
            with suppress(BlockingIOError):
                server.accept()[0].close()
                found.append(name)
        return found

    def close(self) -> None:
        """Takes all of them away."""
        self._loopback.close()
        self._abstract.close()
        with suppress(OSError):
            os.close(self.descriptor)
        os.environ.pop(VARIABLE, None)
        if self._segment >= 0:
            self._libc.shmctl(self._segment, IPC_RMID, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
