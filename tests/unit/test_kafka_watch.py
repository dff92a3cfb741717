"""A broker that does not answer is waited for up to its limit, then named with the cause."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from infra.clock import ManualClock
from infra.kafka_watch import LOOK_S, BrokerWatch, find_silence
from schemas.errors import BrokerError
from schemas.process import BrokerSettings


def watch(causes: list[str], clock: ManualClock, away_s: float = 10) -> BrokerWatch:
    """A watch whose probe gives the causes in turn, the last one for ever."""
    return BrokerWatch(
        BrokerSettings(away_s=away_s), clock=clock, probe=lambda _: causes.pop(0) if len(causes) > 1 else causes[0]
    )


def test_a_broker_that_comes_back_within_the_limit_is_waited_for() -> None:
    clock = ManualClock()
    reachable = watch(["", "refused", "refused", "refused", ""], clock, away_s=3 * LOOK_S)
    seen = []
    for _ in range(5):
        reachable.check()
        seen.append(reachable.away)
        clock.now += LOOK_S
    assert seen == [False, True, True, True, False]


def test_a_broker_that_stays_away_is_named_at_the_limit_with_cause_and_fix() -> None:
    clock = ManualClock()
    reachable = watch(["refused"], clock)
    for _ in range(int(10 / LOOK_S)):
        reachable.check()
        clock.now += LOOK_S
    with pytest.raises(BrokerError, match=r"has been away for 10 s \(refused\)\. Start it again, then this command"):
        reachable.check()


def test_each_time_away_has_the_whole_limit() -> None:
    clock = ManualClock()
    reachable = watch(["refused", "refused", "", "refused"], clock, away_s=2 * LOOK_S)
    for _ in range(5):
        reachable.check()
        clock.now += LOOK_S


def test_the_broker_is_asked_no_more_often_than_the_look() -> None:
    clock, asked = ManualClock(), []

    def probe(settings: BrokerSettings) -> str:
        asked.append(settings.address)
        return ""

    reachable = BrokerWatch(BrokerSettings(), clock=clock, probe=probe)
    for _ in range(100):
        reachable.check()
        clock.now += LOOK_S / 10
    assert len(asked) == 10


def test_a_listener_that_answers_is_not_silent_and_one_that_only_listens_or_closes_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = BrokerSettings(address=f"127.0.0.1:{server.getsockname()[1]}")

        def serve(answer: bytes) -> None:
            link, _ = server.accept()
            with link:
                (size,) = struct.unpack(">i", link.recv(4))
                assert len(link.recv(size)) == size
                link.sendall(answer)

        for answer, silent in ((struct.pack(">ii", 4, 1), False), (b"", True)):
            thread = threading.Thread(target=serve, args=(answer,))
            thread.start()
            assert bool(find_silence(settings)) is silent
            thread.join(10)
    assert "refused" in find_silence(settings)
