"""The ingestion benchmark runs, on a few records, and stores each of them once. What it measures is not looked at."""

from __future__ import annotations

import pytest

from infra.clickhouse import connect
from infra.local.store import LocalStore
from schemas.codec import encode
from schemas.process import BrokerSettings
from tests.bench.ingest import PARTS, RECORD_BYTES, Ingest, drain_backlog, episode, follow_stream, ingest_rows, write_backlog
from tests.bench.table import as_text

pytestmark = pytest.mark.integration


def test_a_made_up_episode_is_a_record_of_two_kilobytes() -> None:
    sizes = [len(encode(episode("run", number))) for number in range(20)]
    assert 0.9 * RECORD_BYTES < sum(sizes) / len(sizes) < 1.1 * RECORD_BYTES


def test_backlog_and_stream_are_stored_whole_and_told(broker_settings: BrokerSettings, store: LocalStore, run_id: str) -> None:
    client = connect(store.dsn)
    try:
        size = write_backlog(broker_settings, run_id, 150)
        seconds, parts = drain_backlog(broker_settings, client, run_id, 150)
        waited, behind = follow_stream(broker_settings, client, f"{run_id}-stream", 200)
        counts = client.query(
            "SELECT count() AS n, uniqExact(play_id) AS u FROM episodes WHERE run_id IN {runs:Array(String)}",
            {"runs": [run_id, f"{run_id}-stream"]},
        )
    finally:
        client.close()
    assert counts == [{"n": 350, "u": 350}]
    assert set(parts) == set(PARTS)
    assert 0 < sum(parts.values()) <= seconds
    text = as_text(ingest_rows(Ingest(150, size, seconds, parts, 200, waited, behind)))
    for name in PARTS:
        assert f"share of time, {name}" in text
    assert "| memory: episode records a second, from a backlog | >= 2000 /s |" in text
