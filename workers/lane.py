"""One thread that does slow work while the consumer goes on polling. At most one unit is in it.

The thread is a daemon: one that hangs (in a model, in a jail) can't keep the process from ending.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(Generic[T]):
    """Runs one call at a time; `take` gives its result or raises what it raised."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()
        self._done = threading.Event()
        self._result: T | None = None
        self._problem: BaseException | None = None
        context = contextvars.copy_context()  # log lines of the thread carry what the process has bound
        threading.Thread(target=context.run, args=(self._serve,), name="lane", daemon=True).start()

    def start(self, call: Callable[[], T]) -> None:
        """Begins a call; the one before must have been taken."""
        self._done.clear()
        self._result = self._problem = None
        self._calls.put(call)

    def wait(self, timeout_s: float) -> bool:
        """Whether the call has ended, waiting for it up to `timeout_s`."""
        return self._done.wait(timeout_s)

    def take(self) -> T:
        """The ended call's result; raises what the call raised."""
        if self._problem is not None:
            raise self._problem
        result: T = self._result  # type: ignore[assignment]  # an ended call has one
        return result

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._result = call()
            except BaseException as problem:  # noqa: BLE001 - a thread's boundary: raised again by `take`
                self._problem = problem
            self._done.set()
