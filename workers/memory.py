"""The memory sink: every record of the run becomes rows in the store, once. `spade work memory`.

In: all topics, in one consumer group a run (`spade-memory-RUN`). Out: rows (memory_rows), and dead letters for broken bytes.
A batch is one partition's records between fixed offset boundaries, or less where they are long, inserted under the token
topic:partition:first-last:table and committed after the insert. After a crash a partition resumes behind the last offset that the
store holds, a block sent twice is dropped by its token, and what still comes twice is replaced by key: three nets.
Ends when the run has finished and everything written until then is stored. Blocks in poll and insert; a store that is away is
tried for STORE_LIMIT_S while the partitions are paused; then StoreError ends the process, and nothing unstored is committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CommitFailedError, KafkaError, RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

from infra import telemetry
from infra.claims import from_bytes
from infra.clickhouse import Store, StoreAwayError, connect
from infra.clock import Clock, SystemClock
from infra.kafka import BrokerWatch, ControlReader, RecordProducer, make_consumer, make_producer, unreachable
from infra.runs import await_run
from schemas import ids
from schemas.errors import DeadLetterFloodError, RecordError, SpadeError
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import DeadLetter
from schemas.score import GenerationClosed
from schemas.topics import BY_WIRE, DEAD_LETTER_BYTES, Topic
from workers.memory_rows import TABLES, TableRow, blocks_of, rows_of

BOUNDARY = 1000  # offsets; no batch crosses a multiple of it
MAX_BYTES = 16 * 2**20  # of records; the client takes several times that while it builds their columns
MAX_AGE_S = 0.5  # how long a row waits for company
STORE_LIMIT_S = 120.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
MAX_DEAD_LETTERS = 100
FINISH_LOOK_S = 1.0
SPARE_LIMIT_S = 15.0


@dataclass
class Pending:
    """Rows of one partition that are not stored yet: of the offsets [first, next)."""

    first: int
    next: int
    since: float  # monotonic
    size_bytes: int = 0
    rows: list[TableRow] = field(default_factory=list)


class MemorySink:
    """One worker of the group. Single-threaded; `step` is called in a loop."""

    def __init__(
        self,
        broker: BrokerSettings,
        store: Store,
        run_id: str,
        *,
        clock: Clock | None = None,
        boundary: int = BOUNDARY,
        max_bytes: int = MAX_BYTES,
        max_age_s: float = MAX_AGE_S,
        store_limit_s: float = STORE_LIMIT_S,
        is_older: Callable[[int | None], bool] = lambda _: False,
    ) -> None:
        """`is_older` tells, by a record's timestamp in ms, whether it was written before the run (infra.runs.Run.is_older)."""
        self.run_id = run_id
        self._is_older = is_older
        self.rows_stored = 0
        self.dead_letters = 0
        self._broker = broker
        self._store = store
        self._clock = clock or SystemClock()
        self._boundary = boundary
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._store_limit_s = store_limit_s
        self._log = telemetry.get_logger("workers.memory")
        self._consumer: KafkaConsumer = make_consumer(broker, f"spade-memory-{run_id}", list(Topic), max_poll_records=2000)
        self._producer: RecordProducer | None = None
        self._pending: dict[TopicPartition, Pending] = {}
        self._resume: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}  # stored, and refused by the group

    def step(self, timeout_s: float = 0.2) -> int:
        """Reads what there is, stores what is due; the rows stored by this call."""
        before = self.rows_stored
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as problem:
            raise unreachable(self._broker, problem) from problem
        try:
            self._follow_assignment()
            for part, messages in batches.items():
                if part in self._resume:
                    self._take(part, messages)
        except SpadeError:
            self._read_again(batches)
            raise
        self._flush(lambda pending: self._clock.monotonic() - pending.since >= self._max_age_s)
        return self.rows_stored - before

    def drain(self, *, spare: bool = False) -> bool:
        """Stores all that is pending; whether this worker's partitions are read to the ends that they have now.

        A worker without partitions has drained only when it is told that it is a `spare` one, that none will come.
        """
        self._flush(lambda pending: True)
        parts = list(self._consumer.assignment())
        if not parts:
            return spare
        try:
            ends = self._consumer.end_offsets(parts)
            return all(self._consumer.position(part) >= ends[part] for part in parts) and not (self._pending or self._uncommitted)
        except KafkaError as problem:
            raise unreachable(self._broker, problem) from problem

    def close(self) -> None:
        """Leaves the group; what is pending is read again by the next worker."""
        self._consumer.close()
        if self._producer is not None:
            self._producer.close()

    def _follow_assignment(self) -> None:
        assigned = self._consumer.assignment()
        for lost in set(self._resume) - assigned:
            self._resume.pop(lost)
            self._pending.pop(lost, None)
        gained = assigned - set(self._resume)
        if gained:
            stored = self._with_patience(lambda: stored_offsets(self._store, self.run_id))
            for part in gained:
                self._resume[part] = stored.get((part.topic, part.partition), -1) + 1

    def _take(self, part: TopicPartition, messages: Sequence[Any]) -> None:
        topic = BY_WIRE[part.topic]
        for message in messages:
            pending = self._pending.get(part)
            if message.offset < (self._resume[part] if pending is None else pending.next):
                continue  # stored or pending already: a rebalance reads again from the commit
            if pending is not None and self._is_full(pending, message.offset):
                self._flush_one(part)
                pending = None
            if pending is None:
                pending = self._pending[part] = Pending(message.offset, message.offset, self._clock.monotonic())
            pending.rows.extend(self._rows(topic, message))
            pending.next = message.offset + 1
            pending.size_bytes += len(message.value or b"")

    def _is_full(self, pending: Pending, offset: int) -> bool:
        return offset // self._boundary != pending.first // self._boundary or pending.size_bytes >= self._max_bytes

    def _read_again(self, batches: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Puts the read positions back behind what is pending or stored, so that a poll that failed half-way loses nothing."""
        for part, messages in batches.items():
            if part in self._consumer.assignment():
                pending = self._pending.get(part)
                self._consumer.seek(part, pending.next if pending else max(messages[0].offset, self._resume.get(part, 0)))

    def _rows(self, topic: Topic, message: Any) -> list[TableRow]:
        telemetry.count("spade_records_in_total", topic=topic.wire)
        try:
            record = from_bytes(topic, message.value or b"", self._broker, self.run_id)
        except RecordError as problem:
            if not self._is_older(message.timestamp):
                self._bury(topic, message, problem)
            return []
        if record.run_id != self.run_id:
            return []
        if isinstance(record, GenerationClosed) and not record.empty:
            _tell_generation(record)
        return rows_of(topic, record, message.partition, message.offset)

    def _bury(self, topic: Topic, message: Any, problem: RecordError) -> None:
        """Writes a dead letter, acknowledged before the record's offset is; stops at the limit."""
        self.dead_letters += 1
        telemetry.count("spade_dead_letters_total", topic=topic.wire)
        self._log.warning(
            "dead letter", topic=topic.wire, partition=message.partition, offset=message.offset, reason=str(problem)
        )
        if self.dead_letters > MAX_DEAD_LETTERS:
            raise DeadLetterFloodError(
                f"more than {MAX_DEAD_LETTERS} records of {topic.wire} and others can't be read; the last: {problem}",
                "Find their writer; they stand in the table dead_letters",
            )
        if topic is Topic.DEAD_LETTER:  # a dead letter about a dead letter would go on for ever
            return
        letter = DeadLetter(
            run_id=self.run_id,
            event_id=ids.event_id("dead-letter", topic.wire, message.partition, message.offset),
            created_at=self._clock.wall(),
            origin_topic=topic.wire,
            partition=message.partition,
            offset=message.offset,
            reason=str(problem),
            data=(message.value or b"")[:DEAD_LETTER_BYTES],
        )
        if self._producer is None:
            self._producer = make_producer(self._broker)
        self._producer.send_all([(Topic.DEAD_LETTER, letter)])

    def _flush(self, due: Any) -> None:
        stored = [part for part, pending in list(self._pending.items()) if due(pending)]
        commits = {part: self._store_pending(part) for part in stored}
        self._commit(commits)

    def _flush_one(self, part: TopicPartition) -> None:
        self._commit({part: self._store_pending(part)})

    def _store_pending(self, part: TopicPartition) -> int:
        pending = self._pending[part]
        topic, last = BY_WIRE[part.topic], pending.next - 1
        for block in blocks_of(self.run_id, topic, part.partition, pending.first, last, pending.rows):
            self._with_patience(lambda b=block: self._store.insert(b.table, b.columns, b.values, token=b.token))
            self.rows_stored += len(block.values)
            telemetry.count("spade_rows_stored_total", len(block.values), table=block.table)
        del self._pending[part]
        self._resume[part] = pending.next
        return pending.next

    def _commit(self, positions: dict[TopicPartition, int]) -> None:
        """Commits them, and what a rebalance refused before; what it refuses now waits for the next time."""
        self._uncommitted.update(positions)
        assigned = self._consumer.assignment()
        self._uncommitted = {part: offset for part, offset in self._uncommitted.items() if part in assigned}
        if not self._uncommitted:
            return
        try:
            self._consumer.commit({part: OffsetAndMetadata(offset, "", -1) for part, offset in self._uncommitted.items()})
        except (CommitFailedError, RebalanceInProgressError):
            # Who gets the partitions resumes behind what the store holds.
            self._log.info("partitions moved before a commit", partitions=len(self._uncommitted))
        except KafkaError as problem:
            raise unreachable(self._broker, problem) from problem
        else:
            self._uncommitted = {}

    def _with_patience(self, ask: Any) -> Any:
        """Asks the store; while it is away, keeps the membership by polling paused partitions, up to the limit."""
        end = self._clock.monotonic() + self._store_limit_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except StoreAwayError as problem:
                if self._clock.monotonic() >= end:
                    raise
                self._log.warning("the store is away, trying again", cause=problem.cause, pause_s=pause)
                self._wait_paused(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _wait_paused(self, seconds: float) -> None:
        """Polls for the membership alone: partitions that come meanwhile are not paused yet, and what they give is put back."""
        end = self._clock.monotonic() + seconds
        try:
            while self._clock.monotonic() < end:
                self._consumer.pause(*self._consumer.assignment())
                for part, messages in self._consumer.poll(timeout_ms=0).items():
                    with contextlib.suppress(ValueError):  # not ours any more
                        self._consumer.seek(part, messages[0].offset)
                self._clock.sleep(0.1)
        finally:
            self._consumer.resume(*self._consumer.assignment())


def stored_offsets(store: Store, run_id: str) -> dict[tuple[str, int], int]:
    """(topic, partition) -> last offset of the run's records that the store holds in full."""
    found: dict[tuple[str, int], int] = {}
    for table in sorted({tables[-1] for tables in TABLES.values()}):
        sql = f"SELECT _topic, _partition, max(_offset) AS last FROM {table} WHERE run_id = {{run:String}} GROUP BY ALL"  # noqa: S608  (our own names)
        for row in store.query(sql, {"run": run_id}):
            found[str(row["_topic"]), int(row["_partition"])] = int(row["last"])
    return found


def _tell_generation(record: GenerationClosed) -> None:
    """Metrics of a closed generation, for alerts on what it has learned; the rows hold the same."""
    telemetry.set_gauge("spade_generations_closed", record.generation + 1)
    telemetry.set_gauge("spade_win_rate", record.win_rate, arm="plain")
    telemetry.set_gauge("spade_win_rate", record.hint_win_rate, arm="hint")
    telemetry.set_gauge("spade_regret", record.regret)
    telemetry.set_gauge("spade_regret_error", record.regret_se)
    telemetry.set_gauge("spade_diversity_share", record.vendi)


def await_store(dsn: str, clock: Clock, limit_s: float = STORE_LIMIT_S) -> Store:
    """The store, also where it is away when the worker starts: tried until `limit_s`, then StoreError with the cause."""
    end = clock.monotonic() + limit_s
    pause = FIRST_PAUSE_S
    while True:
        try:
            return connect(dsn)
        except StoreAwayError as problem:
            if clock.monotonic() >= end:
                raise
            telemetry.get_logger("workers.memory").warning("the store is away, trying again", cause=problem.cause, pause_s=pause)
            clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def run(context: ProcessContext) -> None:
    """Works until the run that the context names has finished. Raises the boundary errors of broker and store."""
    found = await_run(context)
    run_id = found.run_id
    telemetry.bind_run(run_id)
    store = await_store(context.store_dsn, SystemClock())
    sink = MemorySink(context.broker, store, run_id, is_older=found.is_older)
    try:
        with ControlReader(context.broker, [Topic.RUN_FINISHED], run_id) as finished:
            look_at = 0.0
            idle_since: float | None = None  # when the run has finished and this worker has no partitions
            reachable = BrokerWatch(context.broker)
            while True:
                reachable.check()
                sink.step()
                if idle_since is None and time.monotonic() >= look_at:
                    look_at = time.monotonic() + FINISH_LOOK_S
                    idle_since = time.monotonic() if finished.poll(0) else None
                if idle_since is not None and sink.drain(spare=time.monotonic() - idle_since > SPARE_LIMIT_S):
                    return
    finally:
        sink.close()
        store.close()
