"""The one consume loop of the design, validate and rollout workers.

In: records of the stage's topics, in the group spade-work-STAGE-RUN, each handed to the stage's work. Out: what the work returns,
acknowledged by the broker before the input is committed; dead letters. Commits only finished prefixes (infra.ledger), so a kill
at any moment repeats work and loses none; outputs have derived ids, so a repetition writes equal records.
Slow work runs in a thread while this loop goes on polling, with at most `prefetch` records waiting and the partitions paused.
A unit that kills its process, or outlasts its deadline, is counted in the metadata of the partition's commit, so that a restart
knows; after `tries` it is given up as lost. Blocks until the run has finished, or SIGTERM or SIGINT; raises SpadeError.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import CommitFailedError, KafkaError, RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

from infra.claims import from_bytes
from infra.kafka import BrokerWatch, ControlReader, RecordProducer, make_consumer, make_producer, subscribe, unreachable
from infra.ledger import Entry, Ledger
from infra.runs import Run
from infra.telemetry import count, get_logger
from schemas import ids
from schemas.common import Record, Reference
from schemas.errors import DeadLetterFloodError, RecordError, StageTimeoutError
from schemas.process import ProcessContext
from schemas.run import DeadLetter
from schemas.topics import BY_WIRE, DEAD_LETTER_BYTES, Topic
from workers.lane import Lane
from workers.stage import Outputs, Stage, Work
from workers.stopping import stop_on_signals

BAD_RECORDS = 20  # dead letters after which the process stops
BUSY_POLL_MS, IDLE_POLL_MS = 20, 200
COMMIT_EVERY_S = 0.5
LOOK_FOR_END_S = 0.5
UNASSIGNED_S = 60.0  # after the run's end, a process that has nothing to do for this long leaves, whatever others still hold
LEAVE_S = 20.0  # for work that was asked to stop
REMEMBERED = 4096  # finished records, known again after a rebalance
SESSION_S = 15.0  # a busy machine misses heartbeats for seconds; a killed worker's partitions wait as long
log = get_logger("workers.consumer")


@dataclass
class _Item:
    place: TopicPartition
    offset: int
    record: Record
    entry: Entry[None] | None  # None once the partition was revoked
    deadline: float = 0.0
    tried: int = 0  # how often its work was begun before, here or by a process that is gone

    @property
    def at(self) -> Reference:
        return Reference(topic=self.place.topic, partition=self.place.partition, offset=self.offset, id=self.record.event_id)


class UnitConsumer(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python ships no types
    """One process's share of a stage."""

    def __init__(
        self, context: ProcessContext, run: Run, stage: Stage, work: Work, stop: threading.Event, session_s: float = SESSION_S
    ) -> None:
        self._broker, self._run, self._stage, self._work, self._stop = context.broker, run, stage, work, stop
        group = f"spade-work-{stage.name}-{run.run_id}"
        self._consumer = make_consumer(context.broker, group, (), max_poll_records=stage.prefetch, session_timeout_s=session_s)
        self._ledgers: dict[TopicPartition, Ledger[None]] = {}
        self._position: dict[TopicPartition, int] = {}  # next offset to commit
        self._committed: dict[TopicPartition, int] = {}
        self._tries: dict[TopicPartition, tuple[int, int]] = {}  # offset, tries of it that were begun
        self._waiting: deque[_Item] = deque()
        self._running: _Item | None = None
        self._lane: Lane[Outputs] = Lane()
        self._finished: dict[tuple[TopicPartition, int], None] = {}
        self._commit_at = 0.0
        self._noted: dict[TopicPartition, int] = {}  # last offset read
        self._moves: deque[frozenset[TopicPartition]] = deque()  # assignments, by kafka-python's thread
        self._settled = False  # partitions are assigned, and no rebalance is known to be under way
        self._bad = 0

    def run(self) -> None:
        """See the module."""
        subscribe(self._consumer, self._stage.topics, self._broker, listener=self)
        log.info("waiting for work", stage=self._stage.name)
        with (
            make_producer(self._broker) as producer,
            ControlReader(self._broker, [Topic.RUN_FINISHED], self._run.run_id) as control,
        ):
            try:
                self._loop(producer, control)
            except KafkaError as problem:
                raise unreachable(self._broker, problem) from problem
            finally:
                self._consumer.close(autocommit=False)

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Called by kafka-python before a rebalance, with everything that is assigned; on its own thread, as the next two.

        Nothing is forgotten yet: a partition that comes back in the same rebalance keeps its read position, so what was read of
        it and is not finished would never be read again.
        """
        self._settled = False

    def on_partitions_lost(self, lost: Sequence[TopicPartition]) -> None:
        """Called where the group went on without us: all of it is read again, here or elsewhere."""
        self._settled = False
        self._moves.append(frozenset())

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Called after a rebalance: what other members own now is forgotten."""
        self._moves.append(frozenset(self._consumer.assignment()))
        self._settled = True

    def _follow(self, batches: dict[TopicPartition, list[Any]]) -> None:
        """Applies the rebalances that happened, in the thread that polls; takes from the batches what can't be told to be ours.

        A batch may have left kafka-python just before its partition did. Then it follows on records that are forgotten here, and
        to commit behind it would lose them: where the partition is ours again, it is read from its commit on.
        """
        while self._moves:
            kept = self._moves.popleft()
            self._keep(kept)
            for place in batches.keys() - kept:
                del batches[place]
                self._reread(place)

    def _reread(self, place: TopicPartition) -> None:
        committed = self._consumer.committed(place)
        with contextlib.suppress(ValueError):  # not ours any more
            if committed is None:
                self._consumer.seek_to_beginning(place)
            else:
                self._consumer.seek(place, committed)

    def _keep(self, kept: Set[TopicPartition]) -> None:
        """Forgets all that came from other partitions than these."""
        for place in [place for place in self._ledgers if place not in kept]:
            self._ledgers.pop(place).clear()
        for known in (self._position, self._committed, self._tries, self._noted):
            for place in [place for place in known if place not in kept]:
                del known[place]
        self._waiting = deque(item for item in self._waiting if item.place in kept)
        if self._running is not None and self._running.place not in kept:
            self._running.entry = None

    def _loop(self, producer: RecordProducer, control: ControlReader) -> None:
        look_at = idle_since = 0.0
        over, reachable = False, BrokerWatch(self._broker)
        while not self._stop.is_set():
            reachable.check()
            batches = self._consumer.poll(timeout_ms=BUSY_POLL_MS if self._running else IDLE_POLL_MS)
            self._follow(batches)
            for place, messages in batches.items():
                for message in messages:
                    self._note(place, message, producer)
            self._finish(producer)
            self._begin(producer)
            self._regulate()
            now = time.monotonic()
            self._commit(now)
            if not over and now >= look_at:
                look_at = now + LOOK_FOR_END_S
                over = bool(control.poll(0.0))
            if batches or self._running or self._waiting or not over:
                idle_since = now
            elif now - idle_since >= 2 * IDLE_POLL_MS / 1000 and (self._is_drained() or now - idle_since >= UNASSIGNED_S):
                self._commit(now + COMMIT_EVERY_S)
                return
        self._leave(producer)

    def _note(self, place: TopicPartition, message: Any, producer: RecordProducer) -> None:
        if message.offset <= self._noted.get(place, -1):  # lost and read again before we heard of it
            self._keep(self._ledgers.keys() - {place})
        self._noted[place] = message.offset
        ledger = self._ledgers.setdefault(place, Ledger())
        self._position.setdefault(place, message.offset)
        entry = ledger.open(message.offset, None)
        count("spade_records_in_total", topic=place.topic)
        try:
            record = from_bytes(BY_WIRE[place.topic], message.value or b"", self._broker, self._run.run_id)
        except RecordError as problem:
            if not self._run.is_older(message.timestamp):
                self._bury(place, message, str(problem), producer)
            ledger.finish(entry)
            return
        item = _Item(place, message.offset, record, entry)
        running = self._running
        if record.run_id != self._run.run_id or (place, item.offset) in self._finished:
            ledger.finish(entry)
        elif running is not None and (running.place, running.offset) == (place, item.offset):
            running.entry = entry  # revoked and given back while it is worked on
        else:
            self._waiting.append(item)

    def _bury(self, place: TopicPartition, message: Any, reason: str, producer: RecordProducer) -> None:
        letter = DeadLetter(
            run_id=self._run.run_id,
            event_id=ids.event_id("dead-letter", place.topic, place.partition, message.offset),
            created_at=time.time(),
            origin_topic=place.topic,
            partition=place.partition,
            offset=message.offset,
            reason=reason,
            data=(message.value or b"")[:DEAD_LETTER_BYTES],
        )
        producer.send_all([(Topic.DEAD_LETTER, letter)])
        count("spade_dead_letters_total", topic=place.topic)
        log.warning("dead letter", topic=place.topic, partition=place.partition, offset=message.offset, reason=reason)
        self._bad += 1
        if self._bad >= BAD_RECORDS:
            raise DeadLetterFloodError(
                f"{self._bad} records of {place.topic} can't be read, the last at {place.partition}:{message.offset} ({reason})",
                f"Look at {Topic.DEAD_LETTER.wire}, and at who writes to the topic",
            )

    def _begin(self, producer: RecordProducer) -> None:
        while self._running is None and self._waiting:
            item = self._waiting.popleft()
            item.tried = self._tries_of(item)
            if item.tried >= self._stage.tries:
                reason = f"its worker died or ran past {self._stage.deadline_s:.0f} s in {item.tried} tries"
                self._send(producer, item, self._work.give_up(item.record, item.at, reason))
                continue
            self._tries[item.place] = (item.offset, item.tried + 1)
            self._commit_now({item.place})
            item.deadline = time.monotonic() + self._stage.deadline_s
            self._running = item
            self._lane.start(lambda item=item: self._work.run(item.record, item.at))  # type: ignore[misc]

    def _finish(self, producer: RecordProducer) -> None:
        item = self._running
        if item is None:
            return
        if self._lane.wait(0.0):
            if not self._stop.is_set():  # else what it raised may be the stop itself: `_leave` looks
                self._deliver(producer, item)
        elif time.monotonic() >= item.deadline:
            raise StageTimeoutError(
                f"{self._stage.name} worker: {item.at.topic}:{item.at.partition}:{item.at.offset} ({item.record.event_id}) "
                f"was not done within {self._stage.deadline_s:.0f} s",
                "It is tried again after a restart, then recorded as lost; make the recipe's units smaller if it happens often",
            )

    def _deliver(self, producer: RecordProducer, item: _Item) -> None:
        outputs = self._lane.take()
        self._running = None
        try:
            self._send(producer, item, outputs)
        except RecordError as problem:
            self._send(producer, item, self._work.give_up(item.record, item.at, f"oversize: {problem.cause}"))

    def _send(self, producer: RecordProducer, item: _Item, outputs: Outputs) -> None:
        if item.tried:
            outputs = [(topic, msgspec.structs.replace(one, tries=one.tries + item.tried)) for topic, one in outputs]
        producer.send_all(outputs)
        for topic, _ in outputs:
            count("spade_records_out_total", topic=topic.wire)
        self._finished[(item.place, item.offset)] = None
        while len(self._finished) > REMEMBERED:
            del self._finished[next(iter(self._finished))]
        if item.entry is not None and item.place in self._ledgers:
            self._ledgers[item.place].finish(item.entry)

    def _regulate(self) -> None:
        assigned = self._consumer.assignment()
        if not assigned:
            return
        if len(self._waiting) >= self._stage.prefetch:
            self._consumer.pause(*assigned)
        else:
            self._consumer.resume(*assigned)

    def _is_drained(self) -> bool:
        """Whether every record of the stage was read, by others too: who leaves while a member that goes away still holds
        partitions leaves its records to nobody. Not known while partitions move."""
        assigned = self._consumer.assignment()
        if not self._settled or not assigned:
            return False
        names = [topic.wire for topic in self._stage.topics]
        places = [TopicPartition(name, part) for name in names for part in self._consumer.partitions_for_topic(name) or ()]
        begins, ends = self._consumer.beginning_offsets(places), self._consumer.end_offsets(places)
        waiting = [place for place in places if begins[place] < ends[place]]

        def reached(place: TopicPartition) -> int:
            if place in assigned:
                return int(self._consumer.position(place))
            return self._consumer.committed(place) or 0

        return all(reached(place) >= ends[place] for place in waiting)

    def _tries_of(self, item: _Item) -> int:
        """How often the record's work was begun before; told by the commit's metadata after a restart."""
        if item.place not in self._tries:
            told = self._consumer.committed(item.place, metadata=True)
            self._tries[item.place] = parse_tries(getattr(told, "metadata", "") or "")
        offset, tried = self._tries[item.place]
        return tried if offset == item.offset else 0

    def _commit(self, now: float) -> None:
        """Commits finished prefixes, at most every COMMIT_EVERY_S."""
        moved = set()
        for place, ledger in self._ledgers.items():
            done = ledger.finished_prefix()
            if done:
                self._position[place] = done[-1].offset + 1
            if self._position[place] != self._committed.get(place, -1):
                moved.add(place)
        if moved and now >= self._commit_at:
            self._commit_at = now + COMMIT_EVERY_S
            self._commit_now(moved)

    def _commit_now(self, places: set[TopicPartition]) -> None:
        offsets = {}
        for place in places & self._position.keys() & self._consumer.assignment():
            offset, tried = self._tries.get(place, (-1, 0))
            note = f"{offset}:{tried}" if offset >= self._position[place] else ""
            offsets[place] = OffsetAndMetadata(self._position[place], note, -1)
        if not offsets:
            return
        try:
            self._consumer.commit(offsets)
        except (CommitFailedError, RebalanceInProgressError) as problem:  # they come again, and equal
            log.info("commit refused in a rebalance", cause=str(problem))
            return
        self._committed.update({place: offset.offset for place, offset in offsets.items()})

    def _leave(self, producer: RecordProducer) -> None:
        """After a signal: waits a little for the work in hand, commits what is finished. To be stopped is no failed try."""
        item = self._running
        if item is not None and self._lane.wait(LEAVE_S):
            with contextlib.suppress(InterruptedError):
                self._deliver(producer, item)
                item = None
        if item is not None and item.place in self._tries:
            log.info("left a unit for the next process", event_id=item.record.event_id)
            offset, tried = self._tries[item.place]
            self._tries[item.place] = (offset, max(tried - 1, 0))
            self._commit_now({item.place})
        self._commit(time.monotonic() + COMMIT_EVERY_S)


def parse_tries(note: str) -> tuple[int, int]:
    """(offset, tries) in a commit's metadata; (-1, 0) where there is none of ours."""
    offset, _, tried = note.partition(":")
    return (int(offset), int(tried)) if offset.isdecimal() and tried.isdecimal() else (-1, 0)


def consume(context: ProcessContext, run: Run, stage: Stage, make_work: Callable[[threading.Event], Work]) -> None:
    """Builds the work, then consumes until the run has finished or a signal came; the work gets the event of that signal."""
    with stop_on_signals() as stop:
        UnitConsumer(context, run, stage, make_work(stop), stop).run()
