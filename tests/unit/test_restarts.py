"""How often what fails is started again: by cause, with growing pauses, anew after a healthy while; services under a guard."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clock import ManualClock
from infra.local.guard import Guard
from infra.local.ports import LOWEST, free_ports
from infra.local.processes import OwnedProcess
from infra.restarts import HEALTHY_S, LONGEST_PAUSE_S, Restarts
from schemas.errors import BrokerError, DiskFullError, SupervisorError


class Sleeper:
    """A service that does nothing; `refusals`: what its next starts raise."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.refusals: list[Exception] = []
        self.starts = 0
        self.process = OwnedProcess(0, "")
        self.restart()

    @property
    def exit_code(self) -> int | None:
        return self.process.exit_code

    def alive(self) -> bool:
        return self.process.alive()

    def restart(self) -> None:
        self.starts += 1
        if self.refusals:
            raise self.refusals.pop(0)
        self.process = OwnedProcess.start([sys.executable, "-c", "import time; time.sleep(600)"], self.log)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Sleeper]:
    made = Sleeper(tmp_path / "log")
    yield made
    made.process.kill()


def test_each_cause_has_its_own_count() -> None:
    restarts = Restarts(limit=2)
    assert [restarts.note(cause, 1.0) for cause in ("SIGKILL", "exit 3", "SIGKILL", "exit 3", "SIGKILL")] == [*[True] * 4, False]


def test_pauses_grow_with_every_failure_up_to_the_longest() -> None:
    restarts = Restarts(limit=100)
    pauses = []
    for number in range(9):
        restarts.note(f"cause {number % 2}", 1.0)
        pauses.append(restarts.pause_s())
    assert pauses == sorted(pauses)
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_what_lived_for_long_begins_anew() -> None:
    restarts = Restarts(limit=1)
    assert [restarts.note("SIGKILL", HEALTHY_S) for _ in range(5)] == [True] * 5
    assert restarts.pause_s() == 0.5
    assert not restarts.note("SIGKILL", HEALTHY_S / 2)


def test_guarded_service_that_was_killed_is_started_again_after_its_pause(service: Sleeper) -> None:
    clock = ManualClock()
    said: list[str] = []
    guard = Guard("broker", service, Restarts(2), clock=clock, notify=said.append)
    guard.poll()
    assert not guard.was_down_within(1e9)
    service.process.kill()
    guard.poll()
    assert not service.alive()
    clock.now += 0.6
    guard.poll()
    assert service.alive()
    assert guard.was_down_within(1.0)
    assert said == ["the broker was ended by SIGKILL; starting it again in 0.5 s", "the broker is up again"]
    clock.now += 30.0
    guard.poll()
    assert not guard.was_down_within(10.0)


def test_guard_ends_at_its_limit_with_cause_and_log(service: Sleeper) -> None:
    clock = ManualClock()
    guard = Guard("store", service, Restarts(2), clock=clock)
    for _ in range(2):
        service.process.kill()
        guard.poll()
        clock.now += 5.0
        guard.poll()
    service.process.kill()
    with pytest.raises(SupervisorError, match=r"the store was ended by SIGKILL, for the 3\. time\. The whole log is .*log"):
        guard.poll()
    assert service.starts == 3


def test_service_that_does_not_start_is_tried_up_to_the_limit(service: Sleeper) -> None:
    clock = ManualClock()
    guard = Guard("broker", service, Restarts(3), clock=clock)
    service.refusals = [BrokerError("it ended while starting"), BrokerError("it ended while starting")]
    service.process.kill()
    for _ in range(20):
        guard.poll()
        clock.now += 1.0
    assert service.alive()
    assert service.starts == 4


def test_full_disk_is_not_tried_again(service: Sleeper) -> None:
    clock = ManualClock()
    guard = Guard("broker", service, Restarts(3), clock=clock)
    service.refusals = [DiskFullError("no space left")]
    service.process.kill()
    guard.poll()
    clock.now += 1.0
    with pytest.raises(DiskFullError):
        guard.poll()


def test_a_services_port_is_none_that_the_kernel_gives_to_its_clients() -> None:
    """While a broker is down its clients connect to its port all the time: one of them could be given that very port."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    if lowest > LOWEST:
        assert all(LOWEST <= port < lowest for port in ports)


def test_the_signal_of_an_end_is_told(service: Sleeper) -> None:
    assert service.exit_code is None
    service.process.kill()
    assert not service.alive()
    assert service.exit_code == -signal.SIGKILL
