"""Our way round Faust's traps, without a broker: commit positions, held inputs, settings. The shell: test_streams_shell.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import SettingsError
from schemas.process import BrokerSettings, ProcessContext
from schemas.topics import Topic
from streams.app import run
from streams.held import HeldInputs


class Event:
    """Counts acknowledgements."""

    def __init__(self) -> None:
        self.acknowledged = 0

    def ack(self) -> None:
        self.acknowledged += 1


def test_inputs_are_acknowledged_in_log_order_by_partition() -> None:
    held, events = HeldInputs(), [Event() for _ in range(4)]
    for offset, event in enumerate(events[:3]):
        held.hold("t", 0, 10 + offset, event)
    held.hold("t", 1, 5, events[3])
    held.finish([("t", 0, 11), ("t", 0, 12), ("t", 1, 5)])
    assert [event.acknowledged for event in events] == [0, 0, 0, 1]
    assert (held.commit_position("t", 0), held.commit_position("t", 1), held.count) == (None, 6, 3)
    held.finish([("t", 0, 10)])
    assert [event.acknowledged for event in events] == [1, 1, 1, 1]
    assert (held.commit_position("t", 0), held.count) == (13, 0)


def test_revoked_inputs_are_forgotten_and_late_words_about_them_change_nothing() -> None:
    held, event = HeldInputs(), Event()
    held.hold("t", 0, 10, event)
    held.clear()
    held.finish([("t", 0, 10)])
    assert (event.acknowledged, held.commit_position("t", 0), held.count) == (0, None, 0)


def test_consumer_commits_the_ledgers_position_whatever_faust_believes() -> None:
    """Faust's own rule commits 12 here, past the open record 10; and past skipped records after a rebalance."""
    from faust.transport.drivers.aiokafka import Consumer as FaustConsumer
    from faust.types import TP

    from streams.faustapp import consumer_type

    positions: dict[tuple[str, int], int] = {}
    ours = consumer_type(lambda topic, partition: positions.get((topic, partition)))
    part = TP("t", 0)
    state: Any = SimpleNamespace(_acked={part: [11]}, _acked_index={part: {11}}, _gap={part: None}, _committed_offset={part: 10})
    assert FaustConsumer._new_offset(state, part) == 12
    state._acked[part], state._acked_index[part] = [11], {11}
    assert ours._new_offset(state, part) is None
    assert state._acked[part] == []
    positions["t", 0] = 11
    assert ours._new_offset(state, part) == 11


def test_app_has_no_tables_waits_for_nothing_at_a_rebalance_and_reads_bytes(tmp_path: Path) -> None:
    from streams.faustapp import make_app, raw_topic

    async def build() -> Any:
        return make_app("spade-score-run", BrokerSettings(), str(tmp_path), lambda topic, partition: None)

    app = asyncio.run(build())
    assert app.conf.stream_wait_empty is False
    assert app.conf.processing_guarantee.name == "AT_LEAST_ONCE"
    assert app.conf.producer_acks == -1
    assert not app.conf.web_enabled
    assert not app.tables
    topic = raw_topic(app, [Topic.ROLLOUT_FINISHED])
    assert (topic.value_type, topic.value_serializer) == (bytes, "raw")


def test_transport_uses_our_consumer(tmp_path: Path) -> None:
    from streams.faustapp import make_app

    async def build() -> Any:
        return make_app("spade-score-run", BrokerSettings(), str(tmp_path), lambda topic, partition: 7)

    consumer = asyncio.run(build()).transport.Consumer
    assert consumer.__name__ == "LedgerConsumer"


def test_consumers_thread_does_not_keep_a_process_that_has_given_up() -> None:
    from streams import faustapp

    consumer = faustapp.consumer_type(lambda topic, partition: None)
    assert "_new_consumer_thread" in vars(consumer)
    assert faustapp.LetGoThread(object()).daemon is True


def test_unknown_stage_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="design, rollout, score, batch"):
        run("shuffle", ProcessContext())
