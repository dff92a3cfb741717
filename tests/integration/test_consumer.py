"""The workers' consume loop on the real broker: outputs before commits, dead letters, other runs, kills, tries, rebalances."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from kafka import KafkaProducer, TopicPartition

from infra.kafka import make_admin, make_consumer, make_producer
from infra.runs import Run
from schemas import ids
from schemas.codec import decode
from schemas.common import Record, Reference, SamplingSettings
from schemas.design import DesignRequested, EnvProposed
from schemas.errors import DeadLetterFloodError, RecordError, SpadeError, StageTimeoutError
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import RunFinished, RunStarted
from schemas.settings import Recipe
from schemas.topics import Topic
from workers.consumer import UnitConsumer, parse_tries
from workers.stage import Outputs, Stage

pytestmark = pytest.mark.integration


@pytest.fixture
def run(run_id: str) -> Run:
    recipe = Recipe()
    started = RunStarted(
        run_id=run_id,
        event_id="s",
        created_at=time.time(),
        recipe_json=recipe.model_dump_json(),
        recipe_name="test",
        seed=0,
        steps=4,
        policy_place="",
        code_digest="",
        corpus_digest="",
        tokenizer_digest="",
        dialect="nano",
    )
    return Run(started=started, recipe=recipe)


@pytest.fixture
def ask(broker_settings: BrokerSettings, run: Run) -> Callable[..., list[Reference]]:
    """Writes units of the run, spread over the partitions."""

    def send(count: int, first: int = 0, run_id: str = "", partition: int | None = None) -> list[Reference]:
        with make_producer(broker_settings) as producer:
            sent = [
                producer.send(
                    Topic.DESIGN_REQUESTED,
                    unit(run_id or run.run_id, number),
                    partition=number % 12 if partition is None else partition,
                )
                for number in range(first, first + count)
            ]
            producer.flush()
            return [one.result() for one in sent]

    return send


def unit(run_id: str, number: int) -> DesignRequested:
    name = ids.derive("unit", run_id, number)
    return DesignRequested(
        run_id=run_id,
        event_id=name,
        unit_id=name,
        generation=number,
        design_attempt=0,
        policy_version=0,
        settings=SamplingSettings(),
        slots=[],
    )


class EchoWork:
    """One proposal a unit; notes what it was given. `before` may block or raise."""

    def __init__(self, before: Callable[[DesignRequested], None] = lambda record: None) -> None:
        self.before = before
        self.began: list[int] = []

    def run(self, record: Record, at: Reference) -> Outputs:
        assert isinstance(record, DesignRequested)
        self.began.append(record.generation)
        self.before(record)
        return [(Topic.ENV_PROPOSED, proposal(record))]

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        assert isinstance(record, DesignRequested)
        return [(Topic.ENV_PROPOSED, proposal(record, reason))]


def proposal(record: DesignRequested, lost: str = "") -> EnvProposed:
    name = ids.derive("echo", record.unit_id)
    return EnvProposed(
        run_id=record.run_id,
        event_id=name,
        env_id=name,
        unit_id=record.unit_id,
        generation=record.generation,
        slot=0,
        design_attempt=0,
        skill="",
        document_id="",
        group="",
        lost=lost,
    )


class Process:
    """A consumer in a thread, so that a test can stop it and see what it raised."""

    def __init__(self, broker: BrokerSettings, run: Run, work: EchoWork, deadline_s: float = 60, tries: int = 3) -> None:
        self.stop = threading.Event()
        self.problem: BaseException | None = None
        stage = Stage("echo", (Topic.DESIGN_REQUESTED,), deadline_s, prefetch=3, tries=tries)
        self.consumer = UnitConsumer(ProcessContext(broker=broker), run, stage, work, self.stop, session_s=6.0)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.consumer.run()
        except BaseException as problem:  # noqa: BLE001 - looked at by the test
            self.problem = problem

    def join(self, timeout_s: float = 40) -> BaseException | None:
        self.thread.join(timeout_s)
        assert not self.thread.is_alive()
        return self.problem


@pytest.fixture
def start(broker_settings: BrokerSettings, run: Run) -> Iterator[Callable[..., Process]]:
    begun: list[Process] = []

    def begin(work: EchoWork, **bounds: float) -> Process:
        begun.append(Process(broker_settings, run, work, **bounds))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for process in begun:
        process.stop.set()
        process.thread.join(40)


@pytest.fixture
def finish(broker_settings: BrokerSettings, run: Run) -> Callable[[], None]:
    def send() -> None:
        with make_producer(broker_settings) as producer:
            record = RunFinished(
                run_id=run.run_id,
                event_id="f",
                steps=4,
                drain_steps=0,
                final_version=4,
                final_digest="",
                agent_samples=0,
                designer_samples=0,
                cause="done",
            )
            producer.send_all([(Topic.RUN_FINISHED, record)])

    return send


def read_all(broker: BrokerSettings, topic: Topic, run_id: str) -> list[Record]:
    """Every record of the run in the topic, as it stands now."""
    consumer = make_consumer(broker, None, ())
    parts = [TopicPartition(topic.wire, number) for number in range(12)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    ends = consumer.end_offsets(parts)
    found = []
    while any(consumer.position(part) < ends[part] for part in parts):
        for messages in consumer.poll(timeout_ms=200).values():
            found += [decode(topic, message.value) for message in messages]
    consumer.close()
    return [record for record in found if record.run_id == run_id]


def committed(broker: BrokerSettings, run: Run, at: Reference) -> int | None:
    consumer = make_consumer(broker, f"spade-work-echo-{run.run_id}", ())
    try:
        place = consumer.committed(TopicPartition(at.topic, at.partition))
        return None if place is None else int(place)
    finally:
        consumer.close()


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)


def test_each_unit_of_the_run_is_answered_once_and_committed_and_the_end_of_the_run_ends_the_loop(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    ask(5, run_id="some-other-run")
    places = ask(30)
    work = EchoWork()
    process = start(work)
    finish()
    assert process.join() is None
    assert sorted(work.began) == list(range(30))
    answers = read_all(broker_settings, Topic.ENV_PROPOSED, run.run_id)
    assert sorted(record.generation for record in answers if isinstance(record, EnvProposed)) == list(range(30))
    last = {place.partition: place for place in places}
    assert all((committed(broker_settings, run, place) or 0) > place.offset for place in last.values())


def test_a_unit_that_was_not_answered_is_not_committed_and_comes_again_after_a_stop(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    places = ask(3, partition=5)
    process: list[Process] = []

    def stop_at_second(record: DesignRequested) -> None:
        if record.generation == 1:
            process[0].stop.set()
            raise InterruptedError

    process.append(start(EchoWork(stop_at_second)))
    assert process[0].join() is None
    assert committed(broker_settings, run, places[1]) == places[1].offset
    work = EchoWork()
    second = start(work)
    finish()
    assert second.join() is None
    assert work.began == [1, 2]


def test_a_stop_by_a_person_is_no_failed_try(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    ask(1, partition=5)
    for _ in range(2):
        process: list[Process] = []

        def stop(_: DesignRequested, process: list[Process] = process) -> None:
            wait_for(lambda: bool(process))
            process[0].stop.set()
            raise InterruptedError

        process.append(start(EchoWork(stop), tries=1))
        assert process[0].join() is None
    work = EchoWork()
    last = start(work, tries=1)
    finish()
    assert last.join() is None
    assert work.began == [0]
    assert [record.lost for record in read_all(broker_settings, Topic.ENV_PROPOSED, run.run_id)] == [""]  # type: ignore[attr-defined]


def test_bytes_that_are_no_record_become_dead_letters_and_a_flood_of_them_stops_the_process(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    good = ask(1, partition=7)[0]
    raw = KafkaProducer(bootstrap_servers=broker_settings.address)
    bad = raw.send(Topic.DESIGN_REQUESTED.wire, b"\xc1 no record", partition=7).get(10)
    ask(1, first=1, partition=7)
    work = EchoWork()
    process = start(work)
    wait_for(lambda: len(work.began) == 2)
    letters = read_all(broker_settings, Topic.DEAD_LETTER, run.run_id)
    assert [(letter.origin_topic, letter.partition, letter.offset, letter.data) for letter in letters] == [  # type: ignore[attr-defined]
        (Topic.DESIGN_REQUESTED.wire, 7, bad.offset, b"\xc1 no record")
    ]
    assert bad.offset > good.offset
    flood = [raw.send(Topic.DESIGN_REQUESTED.wire, b"\xc1", partition=7) for _ in range(20)]
    raw.close()
    problem = process.join()
    admin = make_admin(broker_settings)  # other tests share the topic
    admin.delete_records({TopicPartition(Topic.DESIGN_REQUESTED.wire, 7): flood[-1].get(10).offset + 1})
    admin.close()
    assert isinstance(problem, DeadLetterFloodError)


def test_what_was_unreadable_before_the_run_began_is_passed_over(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    raw = KafkaProducer(bootstrap_servers=broker_settings.address)
    old = int((time.time() - 3600) * 1000)
    for _ in range(30):
        raw.send(Topic.DESIGN_REQUESTED.wire, b"\xc1", partition=3, timestamp_ms=old)
    raw.close()
    ask(1, partition=3)
    work = EchoWork()
    process = start(work)
    finish()
    assert process.join() is None
    assert work.began == [0]
    assert read_all(broker_settings, Topic.DEAD_LETTER, run.run_id) == []


def test_polling_goes_on_while_slow_work_runs_and_little_waits_behind_it(
    run: Run, ask: Callable[..., list[Reference]], start: Callable[..., Process], finish: Callable[[], None]
) -> None:
    ask(40)
    release = threading.Event()

    def hold(record: DesignRequested) -> None:
        release.wait(30)

    work = EchoWork(hold)
    process = start(work)
    wait_for(lambda: len(work.began) == 1)
    time.sleep(8)  # longer than the session's timeout
    assert len(work.began) == 1
    assert len(process.consumer._waiting) <= 2 * 3
    release.set()
    finish()
    assert process.join() is None
    assert sorted(work.began) == list(range(40))  # the group was kept: nothing was given twice


def test_a_unit_past_its_deadline_ends_the_process_and_is_given_up_after_its_tries(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    ask(3, partition=2)
    never = threading.Event()

    def hang_at_second(record: DesignRequested) -> None:
        if record.generation == 1:
            never.wait(60)

    for _ in range(2):
        problem = start(EchoWork(hang_at_second), deadline_s=1.0, tries=2).join()
        assert isinstance(problem, StageTimeoutError)
        assert "was not done within 1 s" in str(problem)
    work = EchoWork(hang_at_second)
    third = start(work, deadline_s=1.0, tries=2)
    finish()
    assert third.join() is None
    assert work.began == [2]
    answers = [record for record in read_all(broker_settings, Topic.ENV_PROPOSED, run.run_id) if isinstance(record, EnvProposed)]
    assert {record.generation: bool(record.lost) for record in answers} == {0: False, 1: True, 2: False}
    assert {record.generation: record.tries for record in answers} == {0: 0, 1: 2, 2: 0}
    never.set()


def test_an_answer_too_large_for_a_message_is_given_up_as_oversize(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    ask(1)

    class LargeWork(EchoWork):
        def run(self, record: Record, at: Reference) -> Outputs:
            ((topic, answer),) = super().run(record, at)
            return [(topic, msgspec.structs.replace(answer, source="x" * 9_000_000))]

    process = start(LargeWork())
    finish()
    assert process.join() is None
    (answer,) = read_all(broker_settings, Topic.ENV_PROPOSED, run.run_id)
    assert isinstance(answer, EnvProposed)
    assert answer.lost.startswith("oversize")


def test_a_second_process_takes_a_share_and_every_unit_is_answered(
    broker_settings: BrokerSettings,
    run: Run,
    ask: Callable[..., list[Reference]],
    start: Callable[..., Process],
    finish: Callable[[], None],
) -> None:
    ask(24)
    first, second = EchoWork(lambda record: time.sleep(0.3)), EchoWork(lambda record: time.sleep(0.3))
    begun = [start(first)]
    wait_for(lambda: len(first.began) >= 2)
    begun.append(start(second))
    wait_for(lambda: len(second.began) >= 2)
    finish()
    assert [process.join(60) for process in begun] == [None, None]
    assert set(first.began) | set(second.began) == set(range(24))
    answers = [record for record in read_all(broker_settings, Topic.ENV_PROPOSED, run.run_id) if isinstance(record, EnvProposed)]
    assert {record.generation for record in answers} == set(range(24))
    assert len({record.event_id for record in answers}) == 24


def test_an_error_of_the_work_ends_the_process_with_it_and_commits_nothing_of_the_unit(
    broker_settings: BrokerSettings, run: Run, ask: Callable[..., list[Reference]], start: Callable[..., Process]
) -> None:
    (place,) = ask(1)

    def fail(record: DesignRequested) -> None:
        raise SpadeError("the policy is stale")

    problem = start(EchoWork(fail)).join()
    assert isinstance(problem, SpadeError)
    assert not isinstance(problem, RecordError)
    assert (committed(broker_settings, run, place) or 0) <= place.offset


def test_a_foreign_note_on_a_commit_counts_no_tries() -> None:
    assert parse_tries("12:3") == (12, 3)
    assert parse_tries("") == parse_tries("hello") == parse_tries("1:x") == (-1, 0)
