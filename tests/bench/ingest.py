"""How fast the memory sink stores episodes: records of 2 KB from a real broker into the embedded engine, through its own path.

First a backlog, as after an outage of the store: how many a second, and where the time goes. Then a stream at the pace that is
asked for, from a process of its own: how long records wait until they are stored. In: how many. Out: Ingest, and table rows.
Blocks for about a minute. The parts are timed inside the sink's process: reading, decoding, rows, blocks, inserting (building
columns, sending, and the engine's work on the other side), committing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from infra.clickhouse import ClickHouseStore, connect
from infra.kafka import make_producer
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.migrate import migrate
from infra.topics import create_topics
from schemas.codec import encode
from schemas.common import SamplingSettings, Span, pack_floats, pack_ints
from schemas.process import BrokerSettings
from schemas.rollout import RolloutFinished, Turn
from schemas.topics import Topic
from tests.bench.table import Row
from workers import memory
from workers.memory import MemorySink

TARGET = 2000  # episode records a second
RECORD_BYTES = 2048
TOKENS, TURNS = 54, 3
LIMIT_S = 300.0
PARTS = ("read", "decode", "rows", "blocks", "insert", "commit")


@dataclass(frozen=True)
class Ingest:
    """What was seen."""

    records: int
    record_bytes: float  # on the wire, before the producer's compression
    seconds: float
    parts: dict[str, float]  # seconds
    stream_records: int
    stream_seconds: float  # from the first record's writing to the last one's row
    stream_behind: int  # records that waited when the last one had been written

    @property
    def rate(self) -> float:
        """Records a second, from the backlog."""
        return self.records / self.seconds


def episode(run_id: str, number: int) -> RolloutFinished:
    """A made-up play whose record is about RECORD_BYTES long, with texts and tokens that do not compress to nothing."""
    rng = Random(number)
    env_id = f"{number // 16:08x}-{run_id}"
    turns = [
        Turn(observation=_words(rng, 18), action=_words(rng, 6), reward=0.0, action_start=18 * turn, action_end=18 * turn + 9)
        for turn in range(TURNS)
    ]
    return RolloutFinished(
        run_id=run_id, event_id=f"{number:08x}-{run_id}", causation_id=f"{number // 64:08x}-{run_id}", created_at=time.time(),
        play_id=f"{number:08x}-{run_id}", unit_id=f"{number // 64:08x}", env_id=env_id, step=number // 512,
        generation=number // 512, arm="plain" if number % 2 else "hint", index=number % 8, env_seed=rng.getrandbits(63),
        plays_expected=16,
        tokens=pack_ints([rng.randrange(512) for _ in range(TOKENS)]),
        logprobs=pack_floats([-rng.random() for _ in range(TOKENS)]),
        spans=[
            Span(start=18 * turn, end=18 * turn + 9, policy_version=3, policy_digest="d" * 64, settings=SamplingSettings())
            for turn in range(TURNS)
        ],
        turns=turns, final_observation=_words(rng, 10), terminated=True, episode_return=float(number % 2), won=bool(number % 2),
        end_reason="terminated", witness_min_return=1.0,
    )  # fmt: skip


def _words(rng: Random, count: int) -> str:
    return " ".join(f"{rng.getrandbits(20):x}" for _ in range(count))


def measure(tell: Callable[[str], None], records: int = 20_000, stream_s: float = 5.0) -> Ingest:
    """Both. The services are its own, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="spade-ingest-") as name, contextlib.ExitStack() as stack:
        broker = LocalBroker.start(Path(name) / "broker")
        stack.callback(broker.stop)
        store = LocalStore.start(Path(name) / "store")
        stack.callback(store.stop)
        settings = BrokerSettings(address=broker.address)
        create_topics(settings)
        migrate(store.dsn)
        client = stack.enter_context(contextlib.closing(connect(store.dsn)))
        tell(f"a backlog of {records} episodes")
        size = write_backlog(settings, "backlog", records)
        seconds, parts = drain_backlog(settings, client, "backlog", records)
        wanted = int(TARGET * stream_s)
        tell(f"a stream of {TARGET} episodes a second, for {stream_s:.0f} s")
        stream_seconds, behind = follow_stream(settings, client, "stream", wanted)
    return Ingest(records, size, seconds, parts, wanted, stream_seconds, behind)


def write_backlog(broker: BrokerSettings, run_id: str, records: int) -> float:
    """Writes them all; the mean size of one."""
    total = 0
    with make_producer(broker) as producer:
        for start in range(0, records, 1000):
            made = [episode(run_id, number) for number in range(start, min(start + 1000, records))]
            total += sum(len(encode(one)) for one in made)
            producer.send_all([(Topic.ROLLOUT_FINISHED, one) for one in made])
    return total / records


def drain_backlog(broker: BrokerSettings, store: ClickHouseStore, run_id: str, records: int) -> tuple[float, dict[str, float]]:
    """Seconds from the first record that is read to the last row, and those of each part. The group's join is not counted."""
    parts: dict[str, float] = defaultdict(float)
    sink = MemorySink(broker, store, run_id)
    try:
        with timed(sink, parts):
            end = time.monotonic() + LIMIT_S
            while not sink._consumer.assignment():
                sink._consumer.poll(timeout_ms=50, max_records=1)
                assert time.monotonic() < end, "the group does not form"
            for part in sink._consumer.assignment():
                sink._consumer.seek_to_beginning(part)
            parts.clear()
            began = time.perf_counter()
            while sink.rows_stored < records:
                sink.step()
                assert time.monotonic() < end, f"{sink.rows_stored} of {records} rows after {LIMIT_S:.0f} s"
            seconds = time.perf_counter() - began
    finally:
        sink.close()
    (row,) = store.query("SELECT uniqExact(play_id) AS n FROM episodes WHERE run_id = {run:String}", {"run": run_id})
    assert row["n"] == records
    return seconds, dict(parts)


@contextlib.contextmanager
def timed(sink: MemorySink, parts: dict[str, float]) -> Iterator[None]:
    """Adds up how long the sink's parts take."""

    def clocked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                parts[name] += time.perf_counter() - began

        return timing

    with contextlib.ExitStack() as stack:
        for name, owner, attribute in (
            ("read", sink._consumer, "poll"),
            ("decode", memory, "from_bytes"),
            ("rows", memory, "rows_of"),
            ("blocks", memory, "blocks_of"),
            ("insert", sink._store, "insert"),
            ("commit", sink._consumer, "commit"),
        ):
            stack.enter_context(mock.patch.object(owner, attribute, clocked(name, getattr(owner, attribute))))
        yield


def follow_stream(broker: BrokerSettings, store: ClickHouseStore, run_id: str, records: int) -> tuple[float, int]:
    """Seconds from the first writing to the last row, and how many waited when the last had been written."""
    context = multiprocessing.get_context("spawn")
    written = context.Event()
    writer = context.Process(target=write_stream, args=(broker.model_dump(), run_id, records, written), daemon=True)
    sink = MemorySink(broker, store, run_id)
    behind = -1
    try:
        writer.start()
        end = time.monotonic() + LIMIT_S
        while sink.rows_stored < records:
            sink.step()
            if behind < 0 and written.is_set():
                behind = records - sink.rows_stored
            assert time.monotonic() < end, f"{sink.rows_stored} of {records} rows after {LIMIT_S:.0f} s"
        stored = time.time()
    finally:
        sink.close()
        writer.join(30)
        writer.close()
    (row,) = store.query("SELECT min(created_at) AS began FROM episodes WHERE run_id = {run:String}", {"run": run_id})
    return stored - row["began"].timestamp(), max(behind, 0)


def write_stream(broker: dict[str, Any], run_id: str, records: int, written: Any) -> None:
    """Writes TARGET records a second, in a process of its own; sets `written` after the last."""
    share = TARGET // 20
    with make_producer(BrokerSettings.model_validate(broker)) as producer:
        began = time.monotonic()
        for start in range(0, records, share):
            time.sleep(max(0.0, began + start / TARGET - time.monotonic()))
            made = [episode(run_id, number) for number in range(start, min(start + share, records))]
            producer.send_all([(Topic.ROLLOUT_FINISHED, one) for one in made])
    written.set()


def ingest_rows(seen: Ingest) -> Sequence[Row]:
    """The lines of the table."""
    other = seen.seconds - sum(seen.parts.get(name, 0.0) for name in PARTS)
    return [
        Row("memory: episode records a second, from a backlog", seen.rate, TARGET, "/s", True),
        Row("memory: bytes of such a record", seen.record_bytes, unit="B"),
        *[Row(f"memory: share of time, {name}", seen.parts.get(name, 0.0) / seen.seconds) for name in PARTS],
        Row("memory: share of time, everything else", other / seen.seconds),
        Row(
            f"memory: {seen.stream_records / TARGET:.0f} s of {TARGET}/s, from the first writing to the last row",
            seen.stream_seconds,
            unit="s",
        ),
        Row("memory: records that waited when the last had been written", seen.stream_behind),
    ]
