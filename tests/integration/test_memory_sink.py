"""The memory sink stores every record once, whatever is redelivered, buries broken bytes and stops clearly without a store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaProducer

from infra.clickhouse import ClickHouseStore, StoreAwayError, connect
from infra.kafka import make_admin, make_consumer, make_producer
from infra.local.store import LocalStore
from infra.memory import rank_candidates, wait_for_generation
from infra.migrate import migrate
from schemas.common import Record, Reference
from schemas.design import EnvProposed, EnvRejected, EnvValidated, Member, SlotsClosed
from schemas.errors import StageTimeoutError
from schemas.process import BrokerSettings
from schemas.run import RunEnding
from schemas.score import EnvScored, GenerationClosed, ScoredDesign
from schemas.settings import MemorySettings
from schemas.topics import Topic
from workers.memory import MemorySink
from workers.memory_rows import TABLES, rows_of

pytestmark = pytest.mark.integration

OneOfEach = Callable[[str], list[tuple[Topic, Record]]]


@pytest.fixture
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


def work(sink: MemorySink, deadline_s: float = 90.0) -> None:
    """Steps until everything that is in the log now is stored."""
    end = time.monotonic() + deadline_s
    while not sink.drain():
        assert time.monotonic() < end, "the sink did not reach the end of the log"
        sink.step()


def _apart(record: Record) -> Record:
    """Of one design there is one verdict, of one environment one measurement: the refused and the probed one are others."""
    if isinstance(record, EnvRejected):
        return msgspec.structs.replace(record, env_id="refused")
    if isinstance(record, GenerationClosed):
        return msgspec.structs.replace(record, probes=[msgspec.structs.replace(one, env_id="earlier") for one in record.probes])
    return record


def stored(client: ClickHouseStore, run_id: str) -> dict[str, int]:
    counts = {}
    for table in {name for names in TABLES.values() for name in names}:
        (row,) = client.query(f"SELECT count() AS n FROM {table} FINAL WHERE run_id = {{run:String}}", {"run": run_id})
        counts[table] = row["n"]
    return counts


def test_every_record_becomes_its_rows_once_also_when_all_is_delivered_again(
    broker_settings: BrokerSettings, client: ClickHouseStore, run_id: str, one_of_each: OneOfEach
) -> None:
    began_ms = time.time() * 1000  # other tests have left bytes that nobody can read

    def is_older(timestamp_ms: int | None) -> bool:
        return timestamp_ms is not None and timestamp_ms < began_ms

    pairs = [(topic, _apart(record)) for topic, record in one_of_each(run_id)]
    with make_producer(broker_settings) as producer:
        producer.send_all(pairs)
    sink = MemorySink(broker_settings, client, run_id, is_older=is_older)
    work(sink)
    sink.close()
    first = stored(client, run_id)
    expected: dict[str, int] = {}
    for topic, record in pairs:
        for table, _ in rows_of(topic, record, 0, 0):
            expected[table] = expected.get(table, 0) + 1
    assert expected.keys() == {table for tables in TABLES.values() for table in tables}
    assert first == expected
    assert sink.rows_stored == sum(expected.values())

    admin = make_admin(broker_settings)
    admin.delete_groups([f"spade-memory-{run_id}"])  # nothing is committed any more: all is read again
    admin.close()
    again = MemorySink(broker_settings, client, run_id, is_older=is_older)
    work(again)
    again.close()
    assert again.rows_stored == 0
    assert stored(client, run_id) == first


def test_a_record_written_twice_counts_once_the_lower_one(
    broker_settings: BrokerSettings, client: ClickHouseStore, run_id: str
) -> None:
    record = RunEnding(run_id=run_id, event_id="e", last_generation=3, cause="first")
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.RUN_ENDING, record), (Topic.RUN_ENDING, msgspec.structs.replace(record, cause="copy"))])
    sink = MemorySink(broker_settings, client, run_id)
    work(sink)
    sink.close()
    rows = client.query("SELECT cause FROM runs FINAL WHERE run_id = {run:String}", {"run": run_id})
    assert rows == [{"cause": "first"}]


@pytest.mark.parametrize(("boundary", "max_bytes", "most"), [(10, 2**20, 10), (1000, 1, 1)], ids=["by offset", "by size"])
def test_batches_end_at_fixed_offset_boundaries_and_where_they_are_large(
    broker_settings: BrokerSettings, client: ClickHouseStore, run_id: str, boundary: int, max_bytes: int, most: int
) -> None:
    tokens: list[str] = []

    class Listening(ClickHouseStore):
        def insert(self, table: str, columns: object, rows: object, *, token: str = "") -> None:
            tokens.append(token)
            super().insert(table, columns, rows, token=token)  # type: ignore[arg-type]  # passed on as they came

    with make_producer(broker_settings) as producer:
        producer.send_all(
            [(Topic.POLICY_PUBLISHED, record) for record in _policies(run_id, 45)],
        )
    sink = MemorySink(broker_settings, Listening(client.address), run_id, boundary=boundary, max_bytes=max_bytes)
    work(sink)
    sink.close()
    spans = [tuple(map(int, token.split(":")[3].split("-"))) for token in tokens]
    assert len(spans) >= 5
    assert all(first // boundary == last // boundary for first, last in spans)
    assert all(last - first < most for first, last in spans)
    assert stored(client, run_id)["policies"] == 45


def test_broken_bytes_become_a_dead_letter_with_their_place_and_the_rest_is_stored(
    broker_settings: BrokerSettings, client: ClickHouseStore, run_id: str
) -> None:
    raw = KafkaProducer(bootstrap_servers=broker_settings.address)
    meta = raw.send(Topic.RUN_ENDING.wire, value=b"\xff broken", key=run_id.encode()).get(timeout=30)
    raw.close()
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.RUN_ENDING, RunEnding(run_id=run_id, event_id="e", last_generation=0, cause=""))])
    sink = MemorySink(broker_settings, client, run_id)
    work(sink)
    work(sink)  # the letters that it wrote itself
    sink.close()
    assert stored(client, run_id)["runs"] == 1
    (letter,) = client.query(
        "SELECT base64Decode(data_base64) AS data, reason FROM dead_letters FINAL "
        "WHERE origin_topic = {topic:String} AND origin_partition = {part:UInt32} AND origin_offset = {offset:UInt64}",
        {"topic": meta.topic, "part": meta.partition, "offset": meta.offset},
    )
    assert "RunEnding" in letter["reason"]


def test_a_store_that_comes_back_within_the_limit_loses_nothing_and_one_that_does_not_stops_the_sink(
    broker_settings: BrokerSettings, run_id: str, tmp_path: Path
) -> None:
    local = LocalStore.start(tmp_path)
    try:
        migrate(local.dsn)
        client = connect(local.dsn)
        with make_producer(broker_settings) as producer:
            producer.send_all([(Topic.RUN_ENDING, RunEnding(run_id=run_id, event_id="e", last_generation=0, cause=""))])
        sink = MemorySink(broker_settings, client, run_id, store_limit_s=1.0)
        local.kill()
        with pytest.raises(StoreAwayError, match="can't reach store"):
            work(sink)
        local.restart()
        work(sink)
        sink.close()
        assert stored(client, run_id)["runs"] == 1
        client.close()
    finally:
        local.stop()


def test_what_comes_with_new_partitions_while_the_store_is_away_is_stored_too(
    broker_settings: BrokerSettings, client: ClickHouseStore, run_id: str
) -> None:
    class Away(ClickHouseStore):
        """Away until the sink has got the other member's partitions and polled them for some seconds."""

        tried = 5

        def insert(self, table: str, columns: object, rows: object, *, token: str = "") -> None:
            self.tried += 1
            if self.tried == 1:
                other.close()
            if self.tried < 5:
                raise StoreAwayError("away", "Wait")
            super().insert(table, columns, rows, token=token)  # type: ignore[arg-type]  # passed on as they came

    away = Away(client.address)
    sink = MemorySink(broker_settings, away, run_id)
    other = make_consumer(broker_settings, f"spade-memory-{run_id}", list(Topic))
    polling = threading.Event()
    polling.set()
    second = threading.Thread(target=lambda: [other.poll(timeout_ms=50) for _ in iter(polling.is_set, False)])
    second.start()
    try:
        end = time.monotonic() + 60
        while not other.assignment() or not sink._consumer.assignment() or other.assignment() & sink._consumer.assignment():
            assert time.monotonic() < end, "the group does not form"
            sink.step()
    finally:
        polling.clear()
        second.join(30)
    mine, theirs = (
        min(part.partition for part in member.assignment() if part.topic == Topic.POLICY_PUBLISHED.wire)
        for member in (sink._consumer, other)
    )
    with make_producer(broker_settings) as producer:
        for record, partition in zip(_policies(run_id, 2), (mine, theirs), strict=True):
            producer.send(Topic.POLICY_PUBLISHED, record, partition=partition)
    away.tried = 0  # before, what other tests left in the log was stored
    work(sink)
    sink.close()
    assert stored(client, run_id)["policies"] == 2


def test_a_generation_is_in_memory_when_every_members_rows_are(
    broker_settings: BrokerSettings, client: ClickHouseStore, store: LocalStore, run_id: str
) -> None:
    pairs = _generation(run_id)
    late = [pair for pair in pairs if pair[0] is Topic.ENV_SCORED]

    async def ask(deadline_s: float) -> list[str]:
        asynchronous = ClickHouseStore(client.address)
        try:
            await wait_for_generation(asynchronous, run_id, 0, deadline_s)
            ranked = await rank_candidates(asynchronous, run_id, 0, "s", MemorySettings(diversity="none"))
            return [one.env_id for one in ranked]
        finally:
            await asynchronous.aclose()

    sink = MemorySink(broker_settings, client, run_id)
    with make_producer(broker_settings) as producer:
        with pytest.raises(StageTimeoutError, match=r"generation 0 .* its closing row is missing"):
            asyncio.run(ask(0.1))
        producer.send_all([pair for pair in pairs if pair not in late])
        work(sink)
        with pytest.raises(StageTimeoutError, match="rows of 2 of its members are missing"):
            asyncio.run(ask(0.1))
        producer.send_all(late)
        work(sink)
    sink.close()
    assert asyncio.run(ask(5.0)) == ["env-0", "env-1"]


def _policies(run_id: str, count: int) -> list[Record]:
    from schemas.train import Canary, PolicyPublished

    canary = Canary(tokens=b"", logprobs=b"")
    return [
        PolicyPublished(run_id=run_id, event_id=f"p{number}", version=number, digest="d", place="p", canary=canary)
        for number in range(count)
    ]


def _generation(run_id: str) -> list[tuple[Topic, Record]]:
    """A closed generation of two members."""
    proposal = Reference(topic="t", partition=0, offset=0, id="x")
    pairs: list[tuple[Topic, Record]] = []
    members, designs = [], []
    for slot in range(2):
        env_id = f"env-{slot}"
        where = {"env_id": env_id, "slot": slot, "design_attempt": 0, "skill": "s", "document_id": "d", "group": "g"}
        source = {"source": "code", "hint": "h"}
        pairs += [
            (
                Topic.ENV_PROPOSED,
                EnvProposed(run_id=run_id, event_id=f"p{slot}", unit_id="u", generation=0, **where, **source),  # type: ignore[arg-type]  # fields by name
            ),
            (
                Topic.ENV_VALIDATED,
                EnvValidated(
                    run_id=run_id, event_id=f"v{slot}", generation=0, proposal=proposal, full_source="code", source_digest="",
                    signature=[], proof=[], witness_min_return=1.0, witness_mean_return=1.0, reward_min=0.0, **where, **source,  # type: ignore[arg-type]  # fields by name
                ),
            ),
            (Topic.ENV_SCORED, EnvScored(run_id=run_id, event_id=f"s{slot}", env_id=env_id, step=0, generation=0, arms=[])),
        ]  # fmt: skip
        members.append(
            Member(proposal=proposal, source_digest="", witness_min_return=1.0, reward_min=0.0, **where, **source)  # type: ignore[arg-type]  # fields by name
        )
        designs.append(
            ScoredDesign(
                proposal=proposal, valid=True, w=0.5, win_rate=0.5, hint_win_rate=0.5, regret=0.1, regret_se=0.1, reward=0.5,
                advantage=0.0, trained=True, **where,  # type: ignore[arg-type]  # fields by name
            )
        )  # fmt: skip
    closed = GenerationClosed(
        run_id=run_id, event_id="g", generation=0, designs=designs, proposed=2, valid=2, rejected_by_rule={}, missing=0,
        duplicates=0, win_rate=0.5, hint_win_rate=0.5, regret=0.1, regret_se=0.1, designer_reward=0.5, repeats=0.0, vendi=1.0,
        lost=0,
    )  # fmt: skip
    slots = SlotsClosed(run_id=run_id, event_id="c", generation=0, policy_version=0, members=members)
    return [*pairs, (Topic.SLOTS_CLOSED, slots), (Topic.GENERATION_CLOSED, closed)]
