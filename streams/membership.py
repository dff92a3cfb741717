"""A stage's static name in its consumer group: a process that comes back after kill -9 takes its partitions up at once.

In: group name. Out: an instance id and the lock that holds it. Called by streams/app.py. Ids are the lowest free number on this
host, held by a file lock that the kernel lets go with the process, so that two live processes never share one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from schemas.errors import SettingsError

MOST = 256


class Membership:
    """The claimed id; a context manager that lets it go."""

    def __init__(self, group: str) -> None:
        folder = Path(tempfile.gettempdir()) / f"spade-members-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        digest = hashlib.blake2b(group.encode(), digest_size=8).hexdigest()
        for number in range(MOST):
            self._path = folder / f"{digest}-{number}"
            self._file = _lock(self._path)
            if self._file is not None:
                self.instance_id = f"{group}-{socket.gethostname()}-{number}"
                return
        raise SettingsError(f"{MOST} processes of {group} run on this host already", "Stop some of them")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)  # while it is locked: whoever waits for it looks again
            self._file.close()


def _lock(path: Path) -> IO[str] | None:
    """The file, locked; None where another process holds it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
        file.close()  # its holder removed it between our opening and our lock
        return _lock(path)
    return file
