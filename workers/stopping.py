"""SIGTERM and SIGINT as an event, so that a worker stops between two pieces of work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second signal acts as it would have. Outside the main thread signals stay alone."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
