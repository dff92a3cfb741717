"""The loop round a pure join: Faust brings records in, the join decides, outputs are awaited, then inputs are acknowledged.

In: a stage and a run. Out: records. Called by streams/app.py. One epoch an assignment: at its start the stage reads its own
outputs and the control topics to their present ends and builds its join anew; whatever belongs to an earlier epoch is dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from infra.claims import encoded, from_bytes, is_claim, set_apart
from infra.clock import Clock
from infra.kafka import partition_of, unit_partition
from infra.runs import Run
from infra.telemetry import count, get_logger, set_gauge
from schemas import ids
from schemas.common import Record
from schemas.errors import DeadLetterFloodError, RecordError
from schemas.process import ProcessContext
from schemas.run import DeadLetter
from schemas.topics import BY_RECORD, BY_WIRE, DEAD_LETTER_BYTES, MAX_MESSAGE_BYTES, Topic, key_of
from streams.collapse import Reaction
from streams.control import ControlFeed
from streams.design import DesignJoin
from streams.faustapp import make_app, raw_topic
from streams.held import HeldInputs
from streams.recollection import Recollection
from streams.stage import Emit, Join, Outputs, Positioned, Stage, group_name
from streams.stages import SPECS

FLOOD_LIMIT = 20
POLL_S = 0.2


class StageShell:
    """One stage of one run in this process. `failure` holds what ended it."""

    def __init__(
        self,
        stage: Stage,
        run: Run,
        context: ProcessContext,
        partitions: int,
        data_dir: str,
        clock: Clock,
        instance_id: str = "",
    ) -> None:
        self.spec = SPECS[stage]
        self.stage = stage
        self.run = run
        self.failure: BaseException | None = None
        self.stopped = asyncio.Event()
        self.held = HeldInputs()
        self.last_activity = time.monotonic()
        self.assigned: set[tuple[str, int]] = set()
        self.taken: dict[tuple[str, int], int] = {}  # partition -> offset behind the last record that was dealt with
        self._context = context
        self._partitions = partitions
        self._clock = clock
        self._log = get_logger(f"streams.{stage.value}")
        self._join: Join | None = None
        self._epoch = 0
        self._ready = asyncio.Event()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self._dead_letters = 0
        self._recollection = Recollection(run, context.store_dsn)
        self.app = make_app(group_name(stage, run.run_id), context.broker, data_dir, self.held.commit_position, instance_id)
        self._channels = {topic: raw_topic(self.app, [topic]) for topic in Topic}
        self._register()

    @property
    def is_ready(self) -> bool:
        """Whether an assignment stands and its past is read."""
        return self._ready.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether an assignment stands, its past is read, and every input is acknowledged."""
        return self._ready.is_set() and not self._lock.locked() and self.held.count == 0

    async def close(self) -> None:
        """Ends the tasks of the current epoch and closes connections."""
        self._forget()
        for task in list(self._tasks):
            await asyncio.gather(task, return_exceptions=True)
        await self._recollection.close()

    def fail(self, problem: BaseException) -> None:
        """Notes the first problem and stops the stage."""
        if self.failure is None and not isinstance(problem, asyncio.CancelledError):
            self.failure = problem
        self.stopped.set()

    def _register(self) -> None:
        async def join_records(stream: Any) -> None:
            # noack: a record stays unacknowledged until its group has closed.
            async for event in stream.noack().events():
                await self._guard(self._take(event))

        async def start_epoch(_: Any, assigned: set[Any], **__: Any) -> None:
            self._assign({(part.topic, part.partition) for part in assigned})

        async def end_epoch(_: Any, revoked: set[Any], **__: Any) -> None:
            self._forget()

        self.app.agent(raw_topic(self.app, self.spec.inputs), name=f"join-{self.stage.value}", concurrency=1)(join_records)
        self.app.on_partitions_assigned.connect(start_epoch)
        self.app.on_partitions_revoked.connect(end_epoch)

    async def _guard(self, work: Any) -> None:
        """Runs a piece of work; whatever it raises ends the stage, because Faust would acknowledge the record and go on."""
        try:
            await work
        except Exception as problem:  # noqa: BLE001 - the boundary: streams.app raises it again
            self.fail(problem)

    def _forget(self) -> None:
        self._epoch += 1
        self._ready.clear()
        self._join = None
        self.assigned = set()
        self.taken = {}
        self.held.clear()
        for task in self._openings:
            task.cancel()

    def _assign(self, parts: set[tuple[str, int]]) -> None:
        self._forget()
        self.assigned = parts
        self.last_activity = time.monotonic()
        own = partition_of(self.run.run_id.encode(), self._partitions)
        mine = any(topic.wire == name and number == own for name, number in parts for topic in self.spec.inputs)
        if self.spec.by_run and not mine:
            self._ready.set()  # another worker owns the run; records of other runs are only passed over
            return
        self._spawn(self._live(self._epoch), self._tasks)

    def _spawn(self, work: Any, group: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(self._guard(work))
        group.add(task)
        task.add_done_callback(group.discard)

    async def _live(self, epoch: int) -> None:
        """Reads the past, lets the inputs in, then follows the control topics for as long as the epoch lasts."""
        control = self.spec.control_topics(self.run.recipe)
        feed = await asyncio.to_thread(ControlFeed, self._context.broker, self.run.run_id, control, self.spec.own_work)
        try:
            past = await asyncio.to_thread(feed.read_present)
            join = await asyncio.to_thread(self.spec.make_join, self.run)
            if epoch != self._epoch:
                return
            self._join = join
            self._log.info("recovered", records=len(past))
            await self._apply(epoch, lambda live: live.recover(past))
            if epoch == self._epoch:
                self._ready.set()
            while epoch == self._epoch and not self.stopped.is_set():
                for positioned in await asyncio.to_thread(feed.poll, POLL_S):
                    await self._apply(epoch, _learning(positioned))
        finally:
            await asyncio.to_thread(feed.close)

    async def _take(self, event: Any) -> None:
        """One input, in the epoch that it belongs to."""
        await self._ready.wait()
        message = event.message
        if message.generation_id != self.app.consumer_generation_id:
            return  # fetched before a rebalance: it comes again
        epoch, part, offset = self._epoch, (message.topic, message.partition), message.offset
        await self._deal(epoch, event)
        if epoch == self._epoch:
            self.taken[part] = offset + 1

    async def _deal(self, epoch: int, event: Any) -> None:
        """Decode, decide, write, acknowledge."""
        message = event.message
        self.last_activity = time.monotonic()
        self.held.hold(message.topic, message.partition, message.offset, event)
        position = (message.topic, message.partition, message.offset)
        topic, data = BY_WIRE[message.topic], message.value or b""
        message.value = None  # held records keep their place, not their bytes
        count("spade_records_in_total", topic=topic.wire)
        try:
            record = await self._read(topic, data)
        except RecordError as problem:
            if self.run.is_older(None if message.timestamp is None else int(message.timestamp * 1000)):
                self.held.finish([position])  # bad bytes of an earlier run: its readers have told
                return
            await self._dead_letter(epoch, Positioned(topic, *position[1:], _NO_RECORD), data, str(problem))
            return
        if record.run_id != self.run.run_id:
            self.held.finish([position])
            return
        positioned = Positioned(topic, message.partition, message.offset, record)
        await self._apply(epoch, lambda join: join.accept(positioned))

    async def _apply(self, epoch: int, decide: Callable[[Join], Outputs]) -> None:
        """One decision at a time, so that records leave in the order of the decisions."""
        async with self._lock:
            if epoch != self._epoch or self._join is None:
                return
            outputs = decide(self._join)
            await self._send(outputs.records)
            if epoch != self._epoch:
                return
            self.held.finish(outputs.finished)
            set_gauge("spade_open_groups", self.held.count, stage=self.stage.value)
            for generation in outputs.openings:
                assert isinstance(self._join, DesignJoin)
                self._spawn(self._open_generation(epoch, generation, self._join.reaction(generation)), self._openings)

    async def _open_generation(self, epoch: int, generation: int, reaction: Reaction | None) -> None:
        """Asks memory for the generation's lines, and the clock whether there is time for it."""
        if reaction is not None:
            self._log.info("collapse control reacts", generation=generation, why=reaction.record.told)
        recalled = await self._recollection.recall(generation, reaction.blocked if reaction else frozenset())
        budget_s = self.run.recipe.max_minutes * 60
        time_is_up = budget_s > 0 and self._clock.wall() - self.run.started.created_at > budget_s

        def opening(join: Join) -> Outputs:
            assert isinstance(join, DesignJoin)
            return join.open(generation, recalled.lines, time_is_up=time_is_up, probes=recalled.probes)

        await self._apply(epoch, opening)

    async def _send(self, emits: Sequence[Emit]) -> None:
        """Writes the records and waits until the broker has acknowledged every one."""
        pending = []
        for emit in emits:
            record = msgspec.structs.replace(emit.record, created_at=self._clock.wall())
            topic = BY_RECORD[type(record)]
            key = key_of(record)
            partition = unit_partition(*emit.unit, self._partitions) if emit.unit else partition_of(key, self._partitions)
            value = encoded(record, self._context.broker)
            if len(value) > MAX_MESSAGE_BYTES:
                value = await asyncio.to_thread(set_apart, record, value, self._context.broker)
            pending.append((topic, await self._channels[topic].send(key=key, value=value, partition=partition)))
        for topic, acknowledgement in pending:
            await acknowledgement
            count("spade_records_out_total", topic=topic.wire)

    async def _read(self, topic: Topic, data: bytes) -> Record:
        """The record in an input's bytes; one that stands apart is read in a thread. Raises RecordError, ClaimError."""
        broker, run_id = self._context.broker, self.run.run_id
        if is_claim(data):
            return await asyncio.to_thread(from_bytes, topic, data, broker, run_id)
        return from_bytes(topic, data, broker, run_id)

    async def _dead_letter(self, epoch: int, place: Positioned, data: bytes, reason: str) -> None:
        self._dead_letters += 1
        topic, partition, offset = place.position
        letter = DeadLetter(
            run_id=self.run.run_id,
            event_id=ids.event_id("dead-letter", topic, partition, offset),
            origin_topic=topic,
            partition=partition,
            offset=offset,
            reason=reason,
            data=data[:DEAD_LETTER_BYTES],
        )
        await self._send([Emit(letter)])
        count("spade_dead_letters_total", topic=topic)
        self._log.warning("dead letter", topic=topic, partition=partition, offset=offset, reason=reason)
        if epoch == self._epoch:
            self.held.finish([place.position])
        if self._dead_letters > FLOOD_LIMIT:
            raise DeadLetterFloodError(
                f"stream stage {self.stage.value} met more than {FLOOD_LIMIT} records that it can't use, the last one at "
                f"{topic}:{partition}:{offset} ({reason})",
                f"Look at {Topic.DEAD_LETTER.wire}, stop what writes them and start the stage again",
            )


_NO_RECORD = Record(run_id="", event_id="")


def _learning(positioned: Positioned) -> Callable[[Join], Outputs]:
    return lambda join: join.learn(positioned)
