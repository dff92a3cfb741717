"""Keeps a run's own broker or store up: one that died is started again on its port and folder.

In: a started service. Out: the service, running again, or the error of why not. Called by the supervisor, in the main thread: the
kernel ends a service with the thread that started it. `poll` blocks while the service starts, up to its own limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from infra.clock import Clock, SystemClock
from infra.local.processes import describe_end
from infra.restarts import Restarts
from schemas.errors import BrokerError, PortInUseError, StoreError, SupervisorError


class Service(Protocol):
    """What LocalBroker and LocalStore have in common."""

    @property
    def log(self) -> Path: ...

    @property
    def exit_code(self) -> int | None:
        """How its process ended; None while it runs or where that is not known."""
        ...

    def alive(self) -> bool: ...

    def restart(self) -> None:
        """Starts it again on the same port and data; raises BrokerError, StoreError, PortInUseError or DiskFullError."""
        ...


@dataclass
class Guard:
    """One guarded service."""

    name: str
    service: Service
    restarts: Restarts = field(default_factory=lambda: Restarts(3))
    clock: Clock = field(default_factory=SystemClock)
    notify: Callable[[str], None] = lambda _line: None
    down_at: float | None = None  # monotonic; when it was last seen down
    _start_at: float | None = None  # set while it is down
    _up_at: float = field(default=0.0)

    def __post_init__(self) -> None:
        self._up_at = self.clock.monotonic()

    def poll(self) -> None:
        """Looks at the service; starts it again when its pause is over. Raises SupervisorError at the limit, DiskFullError."""
        now = self.clock.monotonic()
        if self._start_at is None:
            if self.service.alive():
                return
            self._failed(f"the {self.name} {describe_end(self.service.exit_code)}", "", now - self._up_at)
        self.down_at = now
        assert self._start_at is not None
        if now >= self._start_at:
            self._restart()

    def was_down_within(self, seconds: float) -> bool:
        """Whether the service was down in the last so many seconds."""
        return self.down_at is not None and self.clock.monotonic() - self.down_at <= seconds

    def _restart(self) -> None:
        try:
            self.service.restart()
        except (BrokerError, StoreError, PortInUseError) as problem:
            self._failed(f"the {self.name} did not start", problem.cause, 0.0)
            return
        self.down_at = self._up_at = self.clock.monotonic()
        self._start_at = None
        self.notify(f"the {self.name} is up again")

    def _failed(self, cause: str, more: str, lived_s: float) -> None:
        may = self.restarts.note(cause, lived_s)
        why = f"{cause}: {more}" if more else cause
        if not may:
            times = self.restarts.failures[cause]
            raise SupervisorError(f"{why}, for the {times}. time", f"The whole log is {self.service.log}")
        pause = self.restarts.pause_s()
        self._start_at = self.clock.monotonic() + pause
        self.notify(f"{why}; starting it again in {pause:.1f} s")
