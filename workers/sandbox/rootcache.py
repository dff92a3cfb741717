"""The cache of jails' roots, shared by all processes of a machine: who uses one holds it, and what nobody uses goes some day.

A root is held by a shared lock of the kernel's on its folder, which goes with the process that holds it, and is marked as used
by its time of change. `sweep_roots` takes away those that nobody holds and that were unused for UNUSED_S, or for a day where more
than KEPT were used since; and what killed builders left. It locks a root alone and renames it before it removes it, so that
nobody finds half of one. Who calls: the probe, at each start of a sandbox. Where the file system has no locks nothing is removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from schemas.errors import SandboxError

ROOT: Final = "root-"
BUILDING: Final = "building-"
REMOVING: Final = "removing-"
DAY_S: Final = 86_400.0
UNUSED_S: Final = 14 * DAY_S
KEPT: Final = 12
HOLD_TRIES: Final = 20


class HeldRoot:
    """A root that stays until `release`, or the end of this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Lets it go. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def hold_root(build: Callable[[], Path]) -> HeldRoot:
    """The root that `build` gives, held. Builds again where another process took it away in between. Raises SandboxError."""
    for _ in range(HOLD_TRIES):
        path = build()
        descriptor = lock_shared(path)
        if _is_still(path, descriptor):
            with suppress(OSError):
                os.utime(descriptor)
            return HeldRoot(path, descriptor)
        if descriptor >= 0:
            os.close(descriptor)
    raise SandboxError(f"the jail's root {path} is taken away as often as it is built", "End what removes it")


def lock_shared(folder: Path) -> int:
    """A descriptor that holds the folder, or -1 where it is gone. Blocks while a sweep renames it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def sweep_roots(cache_dir: Path, *, unused_s: float = UNUSED_S, kept: int = KEPT, spared_s: float = DAY_S) -> list[str]:
    """Removes what is unused; gives the names. `spared_s`: what was used since then stays, however many there are. Never raises
    for what it can't remove: another user's, or one that somebody holds."""
    now = time.time()
    ages: dict[Path, float] = {}
    with suppress(OSError):
        for path in cache_dir.iterdir():
            with suppress(OSError):
                ages[path] = now - path.stat().st_mtime
    roots = sorted((path for path in ages if path.name.startswith(ROOT)), key=lambda path: ages[path])
    unused = [path for place, path in enumerate(roots) if ages[path] > (unused_s if place < kept else min(unused_s, spared_s))]
    unused += [path for path, age in ages.items() if path.name.startswith((BUILDING, REMOVING)) and age > DAY_S]
    return [path.name for path in unused if _remove(path)]


def _remove(folder: Path) -> bool:
    """Takes a folder away unless somebody holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(folder, descriptor):
            return False
        aside = Path(tempfile.mkdtemp(prefix=REMOVING, dir=folder.parent))
        folder.rename(aside / folder.name)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _is_still(folder: Path, descriptor: int) -> bool:
    """Whether the path still names the folder that is open."""
    with suppress(OSError):
        return descriptor >= 0 and os.path.samestat(folder.stat(), os.fstat(descriptor))
    return False
