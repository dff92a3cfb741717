"""The four Faust stages as processes on the real broker, between synthetic workers: the plan is whole, commits reach the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition

from infra.kafka import count_partitions, make_admin, make_consumer, make_producer
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.topics import create_topics
from schemas import ids
from schemas.codec import decode
from schemas.common import Record
from schemas.design import DesignRequested
from schemas.errors import RecordError
from schemas.process import BrokerSettings, ProcessContext
from schemas.rollout import AuditFinished
from schemas.run import DeadLetter, RunFinished, RunStarted
from schemas.settings import Recipe
from schemas.topics import BY_RECORD, Topic
from schemas.train import BatchReady
from streams.schedule import Schedule
from streams.stage import Stage
from streams.stages import SPECS
from tests.streamworld import Shares, World, answer, policy, small_recipe

pytestmark = pytest.mark.integration
SERVE = """
import sys
from schemas.process import ProcessContext
context = ProcessContext.model_validate_json(sys.argv[2])
if sys.argv[1] == "memory":
    from workers.memory import run
    run(context)
else:
    from streams.app import run
    run(sys.argv[1], context)
"""
DEADLINE_S = 300.0  # bounds a hang; the two cores may be busy with other work
REQUESTS = (Topic.DESIGN_REQUESTED, Topic.ROLLOUT_REQUESTED, Topic.AUDIT_REQUESTED, Topic.BATCH_READY)


class Log:
    """Reads topics of one run from their start, each record once, in log order."""

    def __init__(self, broker: BrokerSettings, run_id: str, topics: tuple[Topic, ...]) -> None:
        self._run_id = run_id
        self._consumer = make_consumer(broker, None, ())
        self._topics = {topic.wire: topic for topic in topics}
        self.parts = [
            TopicPartition(topic.wire, number)
            for topic in topics
            for number in range(count_partitions(self._consumer, topic.wire, broker))
        ]
        self._consumer.assign(self.parts)
        self._consumer.seek_to_beginning(*self.parts)

    def poll(self) -> list[Record]:
        found = []
        for part, messages in self._consumer.poll(timeout_ms=100).items():
            for message in messages:
                with contextlib.suppress(RecordError):
                    record = decode(self._topics[part.topic], message.value)
                    found += [record] if record.run_id == self._run_id else []
        return found

    def read_all(self) -> list[Record]:
        ends = self._consumer.end_offsets(self.parts)
        found = []
        while any(self._consumer.position(part) < ends[part] for part in self.parts):
            found += self.poll()
        return found

    def close(self) -> None:
        self._consumer.close()


class Pool(threading.Thread):
    """Synthetic workers and trainer of one run; answers each request once, and ends the run after its last batch."""

    def __init__(self, broker: BrokerSettings, run_id: str, recipe: Recipe, shares: Shares) -> None:
        super().__init__(daemon=True)
        self.broker, self.run_id, self.recipe, self.shares = broker, run_id, recipe, shares
        self.batches: list[int] = []
        self.halt = threading.Event()
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            self._serve()
        except BaseException as problem:  # told to the test's thread
            self.problem = problem
            raise

    def _serve(self) -> None:
        log, last = Log(self.broker, self.run_id, REQUESTS), list(Schedule(self.recipe.schedule).batches())[-1]
        seen: set[str] = set()
        with make_producer(self.broker) as producer:
            producer.send_all([(Topic.POLICY_PUBLISHED, policy(self.run_id, 0))])
            while not self.halt.is_set() and last not in self.batches:
                fresh = [record for record in log.poll() if record.event_id not in seen]
                seen.update(record.event_id for record in fresh)
                answers = [one for record in fresh for one in answer(record, self.shares)]
                producer.send_all([(BY_RECORD[type(one)], one) for one in answers])
                self.batches += [record.step for record in fresh if isinstance(record, BatchReady)]
            producer.send_all([(Topic.RUN_FINISHED, self._finished())])
        log.close()

    def _finished(self) -> RunFinished:
        return RunFinished(
            run_id=self.run_id,
            event_id=ids.event_id("run-finished", self.run_id),
            steps=len(self.batches),
            drain_steps=0,
            final_version=0,
            final_digest="",
            agent_samples=0,
            designer_samples=0,
            cause="planned",
        )


class Processes:
    """The stages' processes, ended by id."""

    def __init__(self, broker: BrokerSettings, run_id: str, folder: Path, dsn: str) -> None:
        self.context = ProcessContext(broker=broker, run_id=run_id, store_dsn=dsn)
        self._folder = folder
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, what: str, name: str = "") -> None:
        with (self._folder / f"{name or what}.log").open("ab") as log:
            self.started[name or what] = subprocess.Popen(
                [sys.executable, "-c", SERVE, what, self.context.model_dump_json()], stdout=log, stderr=log, env=os.environ
            )

    def kill(self, name: str) -> None:
        self.started[name].send_signal(signal.SIGKILL)
        assert self.started[name].wait(10) == -signal.SIGKILL

    def stop(self, name: str) -> None:
        self.started[name].terminate()
        assert self.started[name].wait(60) is not None

    def told(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-3000:]

    def end(self) -> None:
        for process in self.started.values():
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def start_run(broker_settings: BrokerSettings, run_id: str, tmp_path: Path) -> Iterator[Callable[..., tuple[Pool, Processes]]]:
    """Starts a run's first record, its synthetic pool and its four stages."""
    made: list[Pool | Processes] = []

    def start(
        recipe: Recipe,
        shares: Shares,
        dsn: str = "",
        stages: tuple[Stage, ...] = tuple(Stage),
        broker: BrokerSettings | None = None,
    ) -> tuple[Pool, Processes]:
        address = broker or broker_settings
        started = RunStarted(
            run_id=run_id,
            event_id=ids.event_id("run-started", run_id),
            created_at=time.time(),
            recipe_json=recipe.model_dump_json(),
            recipe_name="test",
            seed=0,
            steps=recipe.schedule.steps,
            policy_place="",
            code_digest="",
            corpus_digest="",
            tokenizer_digest="",
            dialect="nano",
        )
        with make_producer(address) as producer:
            producer.send_all([(Topic.RUN_STARTED, started)])
        pool, processes = Pool(address, run_id, recipe, shares), Processes(address, run_id, tmp_path, dsn)
        made.extend((pool, processes))
        for stage in stages:
            processes.start(stage.value)
        pool.start()
        return pool, processes

    yield start
    for each in made:
        if isinstance(each, Pool):
            each.halt.set()
            each.join(20)
        else:
            each.end()


@pytest.fixture
def make_recipe(tmp_path: Path) -> Callable[..., Recipe]:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"# Document {number}\nA text about the number {number}.\n")

    def make(**overrides: Any) -> Recipe:
        return small_recipe(corpus__path=str(corpus), **overrides)

    return make


def await_batches(pool: Pool, processes: Processes, count: int) -> None:
    """Waits until the pool saw `count` batches; fails with the cause when a stage or the pool ends."""
    end = time.monotonic() + DEADLINE_S
    while len(pool.batches) < count:
        assert pool.problem is None, pool.problem
        for name, process in processes.started.items():
            assert process.poll() is None, f"{name} ended with {process.returncode}: {processes.told(name)}"
        told = "\n".join(processes.told(name) for name in processes.started)
        assert time.monotonic() < end, f"{len(pool.batches)} of {count} batches: {told}"
        time.sleep(0.05)


def await_exits(processes: Processes) -> None:
    """Every stage ends by itself, in order, once the run has finished."""
    for name, process in processes.started.items():
        assert process.wait(60) == 0, processes.told(name)


def logged_plan(broker: BrokerSettings, recipe: Recipe, run_id: str) -> dict[str, Any]:
    """The plan in the real log, read like the one of a World."""
    outputs = (Topic.BATCH_READY, Topic.GENERATION_CLOSED, Topic.ROLLOUT_REQUESTED)
    log = Log(broker, run_id, outputs)
    world = World(recipe, Shares(), 0)
    world.log.clear()
    for record in log.read_all():
        world.log[BY_RECORD[type(record)], 0].append(record)
    log.close()
    return world.plan()


def expected_plan(recipe: Recipe, run_id: str, shares: Shares) -> dict[str, Any]:
    """The same run in memory, undisturbed."""
    world = World(recipe, shares, 0, run_id=run_id)
    world.run()
    return world.plan()


def open_inputs(broker: BrokerSettings, run_id: str, stages: tuple[Stage, ...] = tuple(Stage)) -> list[str]:
    """Partitions whose commit stands before their end, by stage."""
    admin, consumer = make_admin(broker), make_consumer(broker, None, ())
    behind = []
    try:
        for stage in stages:
            group = f"spade-stream-{stage.value}-{run_id}"
            commits = admin.list_group_offsets(group)[group]
            parts = [
                TopicPartition(topic.wire, number)
                for topic in SPECS[stage].inputs
                for number in range(count_partitions(consumer, topic.wire, broker))
            ]
            for part, end in consumer.end_offsets(parts).items():
                commit = commits[part].offset if part in commits else 0
                if commit < end:
                    behind.append(f"{stage.value} {part.topic}:{part.partition} {commit} of {end}")
    finally:
        admin.close()
        consumer.close()
    return behind


def count_batches(recipe: Recipe) -> int:
    return len(list(Schedule(recipe.schedule).batches()))


def test_run_with_memory_is_planned_whole_and_every_commit_reaches_the_end(
    start_run: Callable[..., tuple[Pool, Processes]],
    make_recipe: Callable[..., Recipe],
    broker_settings: BrokerSettings,
    store: LocalStore,
    run_id: str,
) -> None:
    recipe, shares = make_recipe(memory__enabled=True), Shares(non_finite=0.0, unequal=0.0)
    pool, processes = start_run(recipe, shares, store.dsn)
    processes.start("memory")
    await_batches(pool, processes, count_batches(recipe))
    await_exits(processes)
    plan = logged_plan(broker_settings, recipe, run_id)
    assert plan == expected_plan(recipe, run_id, shares)
    assert any(plan["probes"])  # what SQL chose to play again is what the closings say
    assert open_inputs(broker_settings, run_id) == []
    requested = list(read_topic(broker_settings, run_id, Topic.DESIGN_REQUESTED))
    lines = {request.generation: 0 for request in requested if isinstance(request, DesignRequested)}
    for request in requested:
        assert isinstance(request, DesignRequested)
        lines[request.generation] += sum(len(slot.memory) for slot in request.slots)
    assert lines[0] == lines[1] == 0
    assert lines[2] > 0
    assert lines[3] > 0


def read_topic(broker: BrokerSettings, run_id: str, topic: Topic) -> list[Record]:
    log = Log(broker, run_id, (topic,))
    try:
        return log.read_all()
    finally:
        log.close()


def test_stages_killed_in_the_middle_and_two_score_workers_decide_the_same(
    start_run: Callable[..., tuple[Pool, Processes]],
    make_recipe: Callable[..., Recipe],
    broker_settings: BrokerSettings,
    run_id: str,
) -> None:
    recipe, shares = make_recipe(schedule__steps=12), Shares()
    pool, processes = start_run(recipe, shares)
    await_batches(pool, processes, 2)
    for stage in Stage:
        processes.kill(stage.value)
        processes.start(stage.value)
    processes.start("score", "second score worker")
    await_batches(pool, processes, count_batches(recipe))
    await_exits(processes)
    assert logged_plan(broker_settings, recipe, run_id) == expected_plan(recipe, run_id, shares)
    assert open_inputs(broker_settings, run_id) == []


def test_poison_is_dead_lettered_with_its_place_other_runs_are_passed_over_and_sigterm_stops(
    start_run: Callable[..., tuple[Pool, Processes]],
    make_recipe: Callable[..., Recipe],
    broker_settings: BrokerSettings,
    run_id: str,
) -> None:
    _, processes = start_run(make_recipe(), Shares(), stages=(Stage.SCORE,))
    raw = KafkaProducer(bootstrap_servers=broker_settings.address)
    place = raw.send(Topic.ROLLOUT_FINISHED.wire, b"no record", partition=5).get(timeout=30)
    raw.close()
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.AUDIT_FINISHED, foreign_audit())])
    end = time.monotonic() + DEADLINE_S
    letters: list[Record] = []
    while not letters or open_inputs(broker_settings, run_id, (Stage.SCORE,)):
        assert processes.started["score"].poll() is None, processes.told("score")
        assert time.monotonic() < end, processes.told("score")
        letters = letters or read_topic(broker_settings, run_id, Topic.DEAD_LETTER)
        time.sleep(0.2)
    (letter,) = letters
    assert isinstance(letter, DeadLetter)
    assert (letter.origin_topic, letter.partition, letter.offset) == (place.topic, place.partition, place.offset)
    assert (letter.data, "RolloutFinished" in letter.reason) == (b"no record", True)
    processes.started["score"].send_signal(signal.SIGTERM)
    assert processes.started["score"].wait(30) == 0, processes.told("score")


def foreign_audit() -> AuditFinished:
    return AuditFinished(run_id="another", event_id="a", play_id="p", env_id="e", step=0, generation=0, equal=True)


def test_flood_of_poison_stops_the_stage_with_its_cause(
    start_run: Callable[..., tuple[Pool, Processes]], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    own = LocalBroker.start(tmp_path / "broker")  # what lies in the shared one would flood the tests after this
    try:
        settings = BrokerSettings(address=own.address)
        create_topics(settings)
        pool, processes = start_run(make_recipe(), Shares(), stages=(Stage.ROLLOUT,), broker=settings)
        raw = KafkaProducer(bootstrap_servers=own.address)
        for number in range(30):
            raw.send(Topic.SLOTS_CLOSED.wire, b"poison %d" % number)
        raw.close()
        assert processes.started["rollout"].wait(DEADLINE_S) == 1
        assert "DeadLetterFloodError: stream stage rollout met more than 20 records" in processes.told("rollout")
        pool.halt.set()
        pool.join(20)
    finally:
        own.stop()


def test_generation_that_never_reaches_memory_stops_the_design_stage_with_its_cause(
    start_run: Callable[..., tuple[Pool, Processes]], make_recipe: Callable[..., Recipe], store: LocalStore
) -> None:
    recipe = make_recipe(memory__enabled=True, memory__wait_s=1)
    _, processes = start_run(recipe, Shares(), store.dsn)
    assert processes.started["design"].wait(DEADLINE_S) == 1
    assert "StageTimeoutError: generation 0" in processes.told("design")
