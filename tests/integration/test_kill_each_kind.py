"""kill -9 of every kind of process of a real run, each killed only when it is proven busy; then the run is resumed.

Two runs of one id, on brokers and stores of their own: one undisturbed, one in which each kind is killed once, its supervisor
too, and which Ctrl-C ends once. Both must leave the same weights, each planned sample trained once, no score twice, and a store
that holds what the log holds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.clickhouse import connect
from infra.kafka import make_admin, make_consumer
from infra.local.broker import LocalBroker
from infra.local.processes import born_at
from infra.local.store import LocalStore
from schemas.codec import decode, encode
from schemas.common import Record
from schemas.design import DesignRequested, EnvProposed, EnvRejected, EnvValidated, SlotsClosed
from schemas.errors import BrokerError
from schemas.process import BrokerSettings
from schemas.rollout import RolloutFinished, RolloutRequested
from schemas.run import RunFinished
from schemas.score import EnvScored
from schemas.topics import Topic
from schemas.train import BatchReady, PolicyPublished, StepFinished
from tests.tinyrun import RUN_ID, RUN_LIMIT_S, STEPS, TinyRun, command, environment, options, spade_run

pytestmark = pytest.mark.integration
BUSY_LIMIT_S = 900.0
COMMAND_LIMIT_S = 300.0
WORKERS = ("work design", "work validate", "work rollout")
STREAMS = ("stream design", "stream rollout", "stream score", "stream batch")
CHILDREN = (*WORKERS, *STREAMS, "work memory", "train")
SERVICES = ("broker", "store")
STORED = {
    "designs": (Topic.ENV_PROPOSED,),
    "verdicts": (Topic.ENV_VALIDATED, Topic.ENV_REJECTED),
    "slots_closed": (Topic.SLOTS_CLOSED,),
    "requests": (Topic.DESIGN_REQUESTED, Topic.ROLLOUT_REQUESTED),
    "episodes": (Topic.ROLLOUT_FINISHED,),
    "scores": (Topic.ENV_SCORED,),
    "generations": (Topic.GENERATION_CLOSED,),
    "batches": (Topic.BATCH_READY,),
    "steps": (Topic.STEP_FINISHED,),
    "policies": (Topic.POLICY_PUBLISHED,),
}
Place = tuple[str, int, int]


@dataclass
class Watch:
    """What the log says now: records by place, and what each group has acknowledged."""

    address: str
    records: dict[Place, Record] = field(default_factory=dict)
    commits: dict[str, dict[TopicPartition, tuple[int, str]]] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    _consumer: KafkaConsumer | None = None
    _admin: KafkaAdminClient | None = None

    def look(self) -> None:
        """Reads the log to its end, and each group's committed offsets and notes. Raises KafkaError or BrokerError."""
        settings = BrokerSettings(address=self.address, timeout_s=10)
        if self._consumer is None or self._admin is None:
            self.close()
            self._consumer, self._admin = make_consumer(settings, None, ()), make_admin(settings)
            topics = [topic.wire for topic in Topic if self._consumer.partitions_for_topic(topic.wire)]
            if len(topics) < len(Topic):
                raise BrokerError("its topics are not made yet")
            parts = [TopicPartition(wire, number) for wire in topics for number in self._consumer.partitions_for_topic(wire)]
            self._consumer.assign(parts)
            self._consumer.seek_to_beginning(*parts)
        self.ends = self._consumer.end_offsets(list(self._consumer.assignment()))
        end = time.monotonic() + 20
        while any(self._consumer.position(part) < offset for part, offset in self.ends.items()):
            assert time.monotonic() < end, "the log was not read to its end"
            for part, messages in self._consumer.poll(timeout_ms=200).items():
                for message in messages:
                    self.records[part.topic, part.partition, message.offset] = decode(part.topic, message.value)
        groups = [name for kind in CHILDREN if (name := group_of(kind))]
        self.commits = {
            group: {part: (meta.offset, meta.metadata or "") for part, meta in found.items() if meta.offset >= 0}
            for group, found in self._admin.list_group_offsets(dict.fromkeys(groups)).items()
        }

    def close(self) -> None:
        for client in (self._consumer, self._admin):
            if client is not None:
                client.close()
        self._consumer = self._admin = None

    def all_of(self, kind: type[Record]) -> list[Record]:
        return [record for record in self.records.values() if isinstance(record, kind)]


def group_of(kind: str) -> str:
    if kind == "train":
        return ""
    verb, stage = kind.split()
    return f"spade-memory-{RUN_ID}" if stage == "memory" else f"spade-{verb}-{stage}-{RUN_ID}"


def what_is_open(kind: str, watch: Watch) -> list[str]:
    """What a process of this kind has begun, or read, and not answered yet; [] where it can't be shown to be busy."""
    if kind in ("broker", "supervisor"):
        return [one for child in WORKERS for one in what_is_open(child, watch)]
    if kind == "train":
        done = {step.step for step in watch.all_of(StepFinished) if isinstance(step, StepFinished)}
        return [f"batch {one.step}" for one in watch.all_of(BatchReady) if isinstance(one, BatchReady) and one.step not in done]
    positions = watch.commits.get(group_of("work memory" if kind == "store" else kind), {})
    if kind in WORKERS:
        return [record.event_id for record in begun(watch, positions) if not is_answered(record, watch)]
    behind = {part: watch.ends[part] - offset for part, (offset, _) in positions.items()}
    return [f"{count} of {part.topic}" for part, count in behind.items() if count > 0]


def begun(watch: Watch, positions: dict[TopicPartition, tuple[int, str]]) -> list[Record]:
    """The inputs that a worker has noted as begun: it writes `offset:tries` beside its commit before it starts."""
    places = [(part.topic, part.partition, int(note.partition(":")[0])) for part, (_, note) in positions.items() if note]
    return [watch.records[place] for place in places if place in watch.records]


def is_answered(record: Record, watch: Watch) -> bool:
    match record:
        case DesignRequested(unit_id=unit_id):
            return any(isinstance(one, EnvProposed) and one.unit_id == unit_id for one in watch.records.values())
        case RolloutRequested(unit_id=unit_id):
            return any(isinstance(one, RolloutFinished) and one.unit_id == unit_id for one in watch.records.values())
        case EnvProposed(env_id=env_id):
            return any(isinstance(one, EnvValidated | EnvRejected) and one.env_id == env_id for one in watch.records.values())
        case _:
            return True


def children_of(parent: int) -> dict[str, int]:
    """Kind -> process id of the supervisor's living children."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                if "infra.cli" in words:
                    found[" ".join(words[words.index("infra.cli") + 1 :]).strip()] = int(folder.name)
    return found


@dataclass
class Disturbed:
    """A run whose processes are killed, one kind after another."""

    folder: Path
    said: Path
    home: Path
    killed: dict[str, str] = field(default_factory=dict)  # kind -> what it had open
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self, *arguments: str) -> None:
        with self.said.open("ab") as sink:
            self.process = subprocess.Popen(command(*arguments), stdout=sink, stderr=sink, env=environment(self.home))

    def output(self) -> str:
        return self.said.read_text()

    def pid_of(self, kind: str) -> int:
        """0 where none lives now."""
        if kind == "broker":
            broker = LocalBroker.attach(self.folder / kind)
            return broker.pid if broker else 0
        if kind == "store":
            store = LocalStore.attach(self.folder / kind)
            return store.pid if store else 0
        return self.process.pid if kind == "supervisor" else children_of(self.process.pid).get(kind, 0)

    def kill_all(self, kinds: tuple[str, ...]) -> None:
        """Kills each kind once, whichever is seen busy next, and waits until it is back before the next one."""
        waiting, watch = list(kinds), Watch("")
        end = time.monotonic() + BUSY_LIMIT_S
        while waiting:
            assert time.monotonic() < end, f"never seen busy: {waiting}; killed: {self.killed}\n{self.output()}"
            assert self.process.poll() is None, f"the run ended, still to be killed: {waiting}\n{self.output()}"
            time.sleep(0.1)
            broker = LocalBroker.attach(self.folder / "broker")
            if broker is None:
                continue
            if broker.address != watch.address:
                watch.close()
                watch = Watch(broker.address)
            try:
                watch.look()
                busy = [kind for kind in waiting if what_is_open(kind, watch)]
                struck = next((kind for kind in busy if self.strike(kind, watch)), None)
                waiting = [kind for kind in waiting if kind != struck]
            except (KafkaError, BrokerError):
                watch.close()
        watch.close()
        gc.collect()  # sockets of refused connections, which kafka-python leaves to it: here, where their warning is expected

    def strike(self, kind: str, watch: Watch) -> bool:
        """Stops the process, looks again, kills it where it is busy then, else lets it go on; True where it was killed."""
        pid = self.pid_of(kind)
        if not pid:
            return False
        born = born_at(pid)
        try:
            if kind in CHILDREN:
                os.kill(pid, signal.SIGSTOP)
                watch.look()
            open_now = what_is_open(kind, watch)
            if open_now:
                if kind == "broker":
                    watch.close()  # else its connections are refused until the broker is back
                os.kill(pid, signal.SIGKILL)
                self.killed[kind] = ", ".join(open_now)
                self.await_successor(kind, pid, born)
            return bool(open_now)
        finally:
            if kind in CHILDREN and born_at(pid) == born:
                os.kill(pid, signal.SIGCONT)

    def await_successor(self, kind: str, pid: int, born: str) -> None:
        end = time.monotonic() + COMMAND_LIMIT_S
        while born_at(pid) == born or (kind != "supervisor" and self.pid_of(kind) in (0, pid)):
            assert time.monotonic() < end, f"{kind} was not started again\n{self.output()}"
            time.sleep(0.05)


@dataclass
class Left:
    """What a finished run left behind."""

    folder: Path
    watch: Watch
    counts: dict[str, tuple[int, int]]  # table -> rows, distinct ids

    def of(self, topic: Topic) -> list[Record]:
        """Records of a topic in log order, the first of each id only."""
        found: dict[str, Record] = {}
        for (wire, _, _), record in sorted(self.watch.records.items()):
            if wire == topic.wire:
                found.setdefault(record.event_id, record)
        return list(found.values())


def read_left(folder: Path) -> Left:
    broker, store = LocalBroker.start(folder / "broker"), LocalStore.start(folder / "store")
    try:
        watch = Watch(broker.address)
        watch.look()
        watch.close()
        client = connect(store.dsn)
        counts = {}
        for table in STORED:
            (row,) = client.query(f"SELECT count() AS n, uniqExact(event_id) AS ids FROM {table} FINAL")
            counts[table] = (row["n"], row["ids"])
        client.close()
        return Left(folder, watch, counts)
    finally:
        store.stop()
        broker.stop()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def calm(tiny_run: TinyRun) -> Left:
    return read_left(tiny_run.folder)


@pytest.fixture(scope="module")
def run(home: Path, calm: Left) -> Iterator[Disturbed]:
    """The disturbed run, at its end; `calm` first, so that the two don't share the cores."""
    disturbed = Disturbed(home / "disturbed", home / "said", home)
    disturbed.start(*options(disturbed.folder))
    try:
        disturbed.kill_all((*CHILDREN, *SERVICES))
        refused = spade_run(home, "--resume", str(disturbed.folder))
        assert (refused.returncode, "is in use by a living `spade` command" in refused.stderr) == (2, True), refused.stderr
        disturbed.kill_all(("supervisor",))
        disturbed.process.wait()
        disturbed.start("--resume", str(disturbed.folder))
        yield disturbed
    finally:
        gc.collect()
        if disturbed.process.poll() is None:
            disturbed.process.terminate()
            disturbed.process.wait(timeout=60)


@pytest.fixture(scope="module")
def ended(run: Disturbed) -> Left:
    """After the supervisor's kill: Ctrl-C once the run goes on, and then to the end."""
    end = time.monotonic() + COMMAND_LIMIT_S
    while run.output().count("processes started") < 2:
        assert run.process.poll() is None, run.output()
        assert time.monotonic() < end, run.output()
        time.sleep(0.1)
    run.process.send_signal(signal.SIGINT)
    code = run.process.wait(timeout=COMMAND_LIMIT_S)
    assert code == 130, run.output()
    assert re.search(rf"go on with: spade run --resume {re.escape(str(run.folder))}$", run.output(), re.MULTILINE)
    run.start("--resume", str(run.folder))
    assert run.process.wait(timeout=RUN_LIMIT_S) == 0, run.output()
    return read_left(run.folder)


def test_every_kind_was_killed_while_it_had_work_open(run: Disturbed) -> None:
    assert set(run.killed) == {*CHILDREN, *SERVICES, "supervisor"}
    assert all(run.killed.values()), run.killed


def test_weights_are_bit_equal_to_those_of_the_undisturbed_run(calm: Left, ended: Left) -> None:
    digests = [
        {one.version: one.digest for one in left.of(Topic.POLICY_PUBLISHED) if isinstance(one, PolicyPublished)}
        for left in (calm, ended)
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) > STEPS // 2
    lasts = [one for left in (calm, ended) for one in left.of(Topic.RUN_FINISHED) if isinstance(one, RunFinished)]
    assert len(lasts) == 2
    assert lasts[0].final_digest == lasts[1].final_digest
    assert (lasts[0].agent_samples, lasts[0].designer_samples) == (lasts[1].agent_samples, lasts[1].designer_samples)


def test_each_planned_sample_is_trained_exactly_once(calm: Left, ended: Left) -> None:
    batches = [one for one in ended.of(Topic.BATCH_READY) if isinstance(one, BatchReady)]
    steps = [one for one in ended.watch.all_of(StepFinished) if isinstance(one, StepFinished)]
    planned = Counter(sample.sample_id for batch in batches for sample in batch.samples)
    assert Counter(sample for step in steps for sample in step.trained) == planned
    assert set(planned.values()) == {1}
    undisturbed = [one for one in calm.of(Topic.BATCH_READY) if isinstance(one, BatchReady)]
    assert planned == Counter(sample.sample_id for batch in undisturbed for sample in batch.samples)


def test_no_record_of_one_id_differs_from_another(ended: Left) -> None:
    """What was done twice was told twice in the same words: scores, plays, designs, verdicts, batches."""
    seen: dict[tuple[str, str], bytes] = {}
    for (wire, _, _), record in sorted(ended.watch.records.items()):
        if not isinstance(record, StepFinished | RunFinished):
            told = encode(plain(record))
            assert seen.setdefault((wire, record.event_id), told) == told, (wire, record.event_id)
    scores = [one for one in ended.of(Topic.ENV_SCORED) if isinstance(one, EnvScored)]
    assert len({(one.env_id, one.step) for one in scores}) == len(scores)


def plain(record: Record) -> Record:
    """The record without what is only told to people."""
    import msgspec

    timed = {name: 0.0 for name in record.__struct_fields__ if name.endswith("_s") or name == "seconds"}
    return msgspec.structs.replace(record, created_at=0.0, tries=0, **timed)


def test_nothing_was_lost_or_left_out(calm: Left, ended: Left) -> None:
    for topic in (Topic.SLOTS_CLOSED, Topic.ROLLOUT_FINISHED, Topic.ENV_SCORED, Topic.GENERATION_CLOSED):
        assert [one.event_id for one in calm.of(topic)] != []
        assert {one.event_id for one in calm.of(topic)} == {one.event_id for one in ended.of(topic)}
    assert not [one for one in ended.watch.all_of(RolloutFinished) if isinstance(one, RolloutFinished) and one.lost]
    missing = [
        {one.generation: one.missing for one in left.of(Topic.SLOTS_CLOSED) if isinstance(one, SlotsClosed)}
        for left in (calm, ended)
    ]
    assert missing[0] == missing[1], "slots without a design are those of the undisturbed run"
    assert not ended.of(Topic.DEAD_LETTER)


@pytest.mark.parametrize("table", sorted(STORED))
def test_store_holds_each_record_of_the_log_once(ended: Left, table: str) -> None:
    expected = len({record.event_id for topic in STORED[table] for record in ended.of(topic)})
    assert ended.counts[table] == (expected, expected)
    assert expected > 0


def test_finished_run_says_so_when_it_is_resumed_and_nothing_is_left_of_it(ended: Left, run: Disturbed) -> None:
    answer = spade_run(run.home, "--resume", str(ended.folder))
    assert answer.returncode == 0, answer.stderr
    assert f"run {RUN_ID} has finished: there is nothing to resume" in answer.stdout
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if str(run.folder) in line]
