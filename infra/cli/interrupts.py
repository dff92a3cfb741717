"""Ctrl-C, SIGTERM and SIGHUP as one thing, KeyboardInterrupt, and sections that it may not cut in two.

Called by the commands that own processes. Main thread only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Within it each of the signals raises KeyboardInterrupt, also where a shell started us with SIGINT ignored."""
    before = {number: signal.signal(number, _raise) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Holds the signals back until the block is done, then raises KeyboardInterrupt for those that came."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda received, _frame: came.append(received)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def cleanup() -> Iterator[None]:
    """Ignores the signals: what ends processes is not itself ended half way. Everything in it needs a deadline."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(_number: int, _frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), b"stopping; what was started is ended first ...\n")
    raise KeyboardInterrupt
