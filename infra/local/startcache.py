"""Apache Kafka's classes as Java loaded and linked them once, kept in a file: an ahead-of-time cache (JEP 483, 514).

In: the jars and the Java machine's options. Out: the file to start with, which takes two seconds where reading a hundred jars
takes four. The file is no artifact of anybody's but made here by `make install`, so that no lock can name it: its own digest
stands in its name and is checked at each start. Without it, or with one that the Java machine refuses, the broker starts as
before. Called by infra/local/broker.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.local.jars import LOCK_FILE
from schemas.errors import BrokerError

SUFFIX = ".aot"
UNUSED_S = 30 * 24 * 3600  # of other jars or options: another checkout's, or what an older one has left


def class_path(jars: Path) -> str:
    """The jars by name: a cache fits one class path, and the order that Java gives a `*` is the file system's."""
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))


def find(jars: Path, options: Sequence[str]) -> Path | None:
    """The whole cache that was made for these jars and options with this runtime; None where there is none."""
    for candidate in sorted(jars.parent.glob(f"{_inputs(jars, options)}-*{SUFFIX}")):
        if candidate.stem.rpartition("-")[2] == _digest(candidate):
            with contextlib.suppress(OSError):  # another user's
                os.utime(candidate)
            return candidate
    return None


def make(jars: Path, options: Sequence[str], record: Callable[[Path], object]) -> Path:
    """Lets `record` write a cache to the path it is given, and keeps it in place of what stood there and of what nobody has
    used for UNUSED_S; the file.

    Raises BrokerError where `record` wrote none.
    """
    with tempfile.TemporaryDirectory(prefix=".stage-", dir=jars.parent) as stage:
        fresh = Path(stage) / f"fresh{SUFFIX}"
        record(fresh)
        if not fresh.exists():
            raise BrokerError("Java wrote no cache of the broker's classes", "See that the disk has room, and install again")
        former = list(jars.parent.glob(f"*{SUFFIX}"))
        kept = fresh.rename(jars.parent / f"{_inputs(jars, options)}-{_digest(fresh)}{SUFFIX}")
    for old in former:
        with contextlib.suppress(OSError):
            own = old.name.startswith(f"{_inputs(jars, options)}-")
            if old != kept and (own or time.time() - old.stat().st_mtime > UNUSED_S):
                old.unlink()
    return kept


def _inputs(jars: Path, options: Sequence[str]) -> str:
    """What a cache depends on, and the Java machine checks itself too: class path, runtime and what begins with -X."""
    depends = (str(jars), LOCK_FILE.read_bytes(), platform.machine(), [option for option in options if option.startswith("-X")])
    return hashlib.sha256(repr(depends).encode()).hexdigest()[:16]


def _digest(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()[:32]
