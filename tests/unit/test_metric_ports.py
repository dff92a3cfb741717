"""Metrics ports: a taken one is passed over or refused by name, and none is an answer too."""

from __future__ import annotations

import socket

import pytest

from infra import metricports, telemetry
from infra.metricports import FIRST_FREE
from schemas.errors import PortInUseError, SettingsError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ports that were asked for; nothing listens."""
    asked: list[int] = []
    monkeypatch.setattr(telemetry, "serve_metrics", asked.append)
    return asked


def test_zero_serves_nothing_and_a_named_port_is_taken_as_it_is(served: list[int]) -> None:
    assert metricports.serve("train", 0) == 0
    assert served == []
    assert metricports.serve("train", 4711) == 4711
    assert metricports.serve("train", FIRST_FREE) == metricports.RANGES["train"].start
    assert served == [4711, metricports.RANGES["train"].start]


def test_taken_ports_are_passed_over_and_a_full_range_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {metricports.RANGES["train"][2]}

    def serve(port: int) -> None:
        if port not in free:
            raise PortInUseError("taken")

    monkeypatch.setattr(telemetry, "serve_metrics", serve)
    assert metricports.serve("train", FIRST_FREE) == metricports.RANGES["train"][2]
    free.clear()
    assert metricports.serve("train", FIRST_FREE) == 0


def test_a_named_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(PortInUseError, match=str(port)):
            metricports.serve("train", port)


def test_a_kind_without_ports_is_a_mistake_that_is_said(served: list[int]) -> None:
    with pytest.raises(SettingsError, match="work-cook"):
        metricports.serve("work-cook", FIRST_FREE)
