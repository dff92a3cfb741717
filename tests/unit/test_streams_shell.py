"""The loop round a join, without a broker: what is acknowledged, when, and what ends the stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.clock import SystemClock
from infra.runs import Run
from schemas.codec import decode, encode
from schemas.common import Record
from schemas.errors import DeadLetterFloodError
from schemas.process import ProcessContext
from schemas.rollout import RolloutFinished
from schemas.run import DeadLetter, RunStarted
from schemas.topics import MAX_MESSAGE_BYTES, PARTITIONS, Topic
from streams.shell import FLOOD_LIMIT, StageShell
from streams.stage import Emit, Outputs, Positioned, Stage
from streams.stages import SPECS
from tests.streamworld import Shares, World, small_recipe

PLACE = (Topic.ROLLOUT_FINISHED.wire, 3)


class Event:
    """A Faust event: a message and how often it was acknowledged."""

    def __init__(self, offset: int, value: bytes, generation: int = 1) -> None:
        topic, partition = PLACE
        self.message = SimpleNamespace(
            topic=topic, partition=partition, offset=offset, value=value, generation_id=generation, timestamp=time.time()
        )
        self.acknowledged = 0

    def ack(self) -> None:
        self.acknowledged += 1


class Channel:
    """A topic that takes records; a send is acknowledged when `confirmed` is set."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.confirmed = asyncio.Event()
        self.confirmed.set()

    async def send(self, *, key: bytes, value: bytes, partition: int) -> Awaitable[object]:
        self.sent.append(value)
        return asyncio.ensure_future(self.confirmed.wait())


class OneByOne:
    """A join that finishes each record at once, holds those of arm "hold", and breaks at those of arm "break"."""

    def accept(self, positioned: Positioned) -> Outputs:
        assert isinstance(positioned.record, RolloutFinished)
        match positioned.record.arm:
            case "hold":
                return Outputs()
            case "break":
                raise ZeroDivisionError
            case _:
                letter = DeadLetter(run_id="run", event_id="out", origin_topic="", partition=0, offset=0, reason="")
                return Outputs(records=[Emit(letter)], finished=[positioned.position])


def play(arm: str = "plain", run_id: str = "run") -> bytes:
    names = dict.fromkeys(("event_id", "play_id", "unit_id", "env_id"), "x")
    numbers = dict.fromkeys(("step", "generation", "index", "env_seed", "plays_expected"), 0)
    return encode(RolloutFinished(run_id=run_id, arm=arm, **names, **numbers))  # type: ignore[arg-type]  # fields by name


def make_run() -> Run:
    recipe = small_recipe()
    told = dict.fromkeys(("policy_place", "code_digest", "corpus_digest", "tokenizer_digest", "dialect"), "")
    began = time.time()
    started = RunStarted(run_id="run", event_id="s", created_at=began, recipe_json="", recipe_name="", seed=0, steps=8, **told)  # type: ignore[arg-type]  # fields by name
    return Run(started=started, recipe=recipe)


def with_shell(folder: Path, test: Callable[[StageShell, Channel], Awaitable[None]]) -> None:
    """Runs `test` with a score stage whose assignment stands, and the channel behind all its topics."""

    async def serve() -> None:
        shell = StageShell(Stage.SCORE, make_run(), ProcessContext(), PARTITIONS, str(folder), SystemClock())
        channel: Any = Channel()
        shell._channels = dict.fromkeys(Topic, channel)
        shell._join = OneByOne()  # type: ignore[assignment]  # all that the shell asks of a join here
        shell.app = SimpleNamespace(consumer_generation_id=1)
        shell._ready.set()
        await test(shell, channel)

    asyncio.run(serve())


async def take(shell: StageShell, *events: Event) -> None:
    """What the agent does with each."""
    for event in events:
        await shell._guard(shell._take(event))


def test_an_input_is_acknowledged_only_after_the_broker_has_its_outputs(tmp_path: Path) -> None:
    async def test(shell: StageShell, channel: Channel) -> None:
        channel.confirmed.clear()
        event = Event(7, play())
        task = asyncio.create_task(take(shell, event))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (len(channel.sent), event.acknowledged, shell.held.commit_position(*PLACE)) == (1, 0, None)
        channel.confirmed.set()
        await task
        assert (event.acknowledged, shell.held.commit_position(*PLACE), shell.taken[PLACE]) == (1, 8, 8)

    with_shell(tmp_path, test)


def test_bytes_that_are_no_record_are_buried_and_their_good_neighbours_dealt_with(tmp_path: Path) -> None:
    async def test(shell: StageShell, channel: Channel) -> None:
        events = [Event(4, play()), Event(5, b"\xc1 poison"), Event(6, play())]
        await take(shell, *events)
        assert [event.acknowledged for event in events] == [1, 1, 1]
        letters = [decode(Topic.DEAD_LETTER, data) for data in channel.sent]
        (letter,) = [one for one in letters if isinstance(one, DeadLetter) and one.event_id != "out"]
        assert (letter.origin_topic, letter.partition, letter.offset, letter.data) == (*PLACE, 5, b"\xc1 poison")
        assert shell.failure is None

    with_shell(tmp_path, test)


def test_a_flood_of_bad_bytes_ends_the_stage_with_its_cause(tmp_path: Path) -> None:
    async def test(shell: StageShell, _: Channel) -> None:
        await take(shell, *[Event(offset, b"\xc1") for offset in range(FLOOD_LIMIT + 1)])
        assert isinstance(shell.failure, DeadLetterFloodError)
        assert shell.stopped.is_set()

    with_shell(tmp_path, test)


def test_what_a_decision_raises_ends_the_stage_and_its_record_stays_unacknowledged(tmp_path: Path) -> None:
    """Faust alone would acknowledge the record and go on."""

    async def test(shell: StageShell, _: Channel) -> None:
        event = Event(4, play("break"))
        await take(shell, event)
        assert isinstance(shell.failure, ZeroDivisionError)
        assert (event.acknowledged, shell.held.commit_position(*PLACE), shell.held.count) == (0, None, 1)

    with_shell(tmp_path, test)


def test_records_behind_an_open_one_are_finished_and_not_acknowledged(tmp_path: Path) -> None:
    async def test(shell: StageShell, _: Channel) -> None:
        events = [Event(4, play("hold")), Event(5, play()), Event(6, play(run_id="another"))]
        await take(shell, *events)
        assert [event.acknowledged for event in events] == [0, 0, 0]
        assert (shell.held.commit_position(*PLACE), shell.taken[PLACE]) == (None, 7)

    with_shell(tmp_path, test)


def test_what_was_fetched_before_a_rebalance_is_left_to_come_again(tmp_path: Path) -> None:
    async def test(shell: StageShell, channel: Channel) -> None:
        event = Event(4, play(), generation=0)
        await take(shell, event)
        assert (channel.sent, event.acknowledged, shell.held.count, shell.taken) == ([], 0, 0, {})

    with_shell(tmp_path, test)


def test_no_input_is_dealt_with_before_the_past_is_read(tmp_path: Path) -> None:
    async def test(shell: StageShell, channel: Channel) -> None:
        shell._ready.clear()
        task = asyncio.create_task(take(shell, Event(4, play())))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (channel.sent, shell.held.count) == ([], 0)
        shell._ready.set()
        await task
        assert len(channel.sent) == 1

    with_shell(tmp_path, test)


def test_partitions_revoked_while_an_output_is_on_its_way_leave_its_input_unacknowledged(tmp_path: Path) -> None:
    async def test(shell: StageShell, channel: Channel) -> None:
        channel.confirmed.clear()
        event = Event(7, play())
        task = asyncio.create_task(take(shell, event))
        for _ in range(5):
            await asyncio.sleep(0)
        shell._forget()
        channel.confirmed.set()
        await task
        assert (event.acknowledged, shell.held.commit_position(*PLACE), shell.taken) == (0, None, {})

    with_shell(tmp_path, test)


@pytest.mark.parametrize("stage", Stage)
def test_each_stage_has_one_agent_without_concurrency_no_table_and_room_for_the_largest_record(
    stage: Stage, tmp_path: Path
) -> None:
    async def build() -> Any:
        return StageShell(stage, make_run(), ProcessContext(), PARTITIONS, str(tmp_path), SystemClock(), "name-0").app

    app = asyncio.run(build())
    (agent,) = app.agents.values()
    assert agent.concurrency == 1
    assert not app.tables
    assert app.conf.producer_max_request_size > MAX_MESSAGE_BYTES
    assert app.conf.consumer_max_fetch_size > MAX_MESSAGE_BYTES
    assert app.conf.consumer_group_instance_id == "name-0"
    assert app.conf.consumer_auto_offset_reset == "earliest"
    assert agent.channel.value_type is bytes
    assert set(agent.channel.topics) == {topic.wire for topic in SPECS[stage].inputs}


@pytest.mark.parametrize("stage", Stage)
def test_after_a_restart_the_tail_of_what_has_closed_is_finished_at_once_and_nothing_is_written_again(stage: Stage) -> None:
    world = World(small_recipe(), Shares(), 0)
    world.run()
    process = world._start(stage)
    before = sum(map(len, world.log.values()))
    inputs = [
        Positioned(topic, partition, place, record)
        for (topic, partition), records in world.log.items()
        if topic in SPECS[stage].inputs
        for place, record in enumerate(records)
    ]
    assert inputs
    for positioned in reversed(inputs):  # a replay may begin anywhere
        outputs = process.join.accept(positioned)
        assert (outputs.records, outputs.finished, outputs.openings) == ([], [positioned.position], [])
    assert sum(map(len, world.log.values())) == before


def test_faust_is_the_version_whose_traps_are_known() -> None:
    import faust

    assert faust.__version__ == "0.15.3"


def test_a_record_of_each_topic_decodes_only_as_its_own(one_of_each: Callable[[str], list[tuple[Topic, Record]]]) -> None:
    """The shell decodes by topic: bytes of one kind in another's topic are no silent success where fields are missing."""
    from schemas.errors import RecordError

    pairs = dict(one_of_each("run"))
    with pytest.raises(RecordError, match="no SlotsClosed"):
        decode(Topic.SLOTS_CLOSED, encode(pairs[Topic.RUN_FINISHED]))
