"""Files and folders that stand on the disk whole or not at all: written as a draft, flushed, renamed into their place.

In: bytes, or a folder that the caller fills. Out: the same under its last name, durable when the call returns (`write_whole`
only whole, for what can be made again); after a crash either what stood there before or the whole new one, and perhaps a draft,
whose name begins with `.draft-`. Called by whatever keeps policies, checkpoints, claims and archives. Raises OSError; write_error
makes of it what people are told.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import DiskFullError, PolicyError

DRAFT = ".draft-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Draft:
    """A folder that is being written."""

    folder: Path

    def keep(self, target: Path, *, replace: bool = False) -> Path:
        """Puts the folder in its place, on the same disk; `target`. An empty folder there gives way, any other with `replace`."""
        flush_folder(self.folder)
        if replace and target.exists():
            shutil.rmtree(target)
        self.folder.rename(target)
        flush_folder(target.parent)
        return target


@contextlib.contextmanager
def draft_folder(parent: Path, name: str) -> Iterator[Draft]:
    """A new folder below `parent`, which is made where it lacks. What was not kept is gone when the body ends."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{name}-", dir=parent))
    try:
        folder.chmod(0o755)  # readers may run as another user
        yield Draft(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_durably(file: Path, data: bytes) -> None:
    """Writes a draft's file and flushes it to the disk."""
    with file.open("wb") as writing:
        writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())


def write_whole(file: Path, data: bytes) -> None:
    """Writes a file that readers see as it was or as it is now, never between. Flushes nothing: it can be made again. A link's
    target is written; into a device or a pipe the data goes as it does anywhere."""
    file = Path(os.path.realpath(file))
    if file.exists() and not file.is_file() and not file.is_dir():
        file.write_bytes(data)
        return
    part = file.with_name(f"{file.name}.part")
    try:
        part.write_bytes(data)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def copy_durably(source: Path, target: Path) -> None:
    """Copies a file's bytes and flushes them to the disk."""
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        writing.flush()
        os.fsync(writing.fileno())


def flush_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(problem: OSError, what: str) -> DiskFullError | PolicyError:
    """The boundary error for a failed write of `what`."""
    if problem.errno in _FULL:
        return DiskFullError(f"no space left to write {what}", "Free space and start again: what stood there before is whole")
    return PolicyError(f"can't write {what} ({problem.strerror or problem})", "Check the folder and its rights")
