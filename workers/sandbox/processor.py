"""Keeps a thread on one processor while it takes turns with jails.

A play is an exchange: the host writes an action and waits, the jail answers and waits. Apart, each wakes the other across
processors, and every page that a forked child copies comes from the other one's cache: a judgement costs a fifth more (docs/
SANDBOX.md). A jail goes where the thread that takes it may go (engine.py). Who calls: the gate. Raises and blocks nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PROCESSOR: Final = 36  # of /proc/PID/stat, counted behind the name, from 0


@contextmanager
def one_processor() -> Iterator[None]:
    """Keeps the calling thread on the processor where it runs now; afterwards it may go where it might before."""
    allowed = os.sched_getaffinity(0)
    try:
        with suppress(OSError, ValueError, IndexError):  # what can't be kept together costs more, and is no less right
            os.sched_setaffinity(0, {_current()} & allowed or allowed)
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)


def _current() -> int:
    return int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[PROCESSOR])
