"""Replay, archive and rebuild on the real broker, store, jail and nano model: equal where untouched, told where touched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import pytest

from infra.archive import Archive
from infra.cli.app import run_app
from infra.clickhouse import ClickHouseStore, connect
from infra.dialects import load_dialect
from infra.kafka import make_producer
from infra.local.store import LocalStore
from infra.migrate import migrate
from infra.policystore import PolicyStore
from infra.runs import find_folder, start_run
from infra.tabledigest import digest_tables, log_tables
from schemas import ids
from schemas.common import Record, Reference, SamplingSettings, pack_floats, pack_ints
from schemas.process import BrokerSettings, ProcessContext
from schemas.recipes import build_recipe
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.run import RunFinished
from schemas.topics import Topic
from schemas.train import BatchReady, Canary, PolicyPublished, Sample, StepFinished
from workers.memory import MemorySink
from workers.memory_rows import TABLES
from workers.rollout import RolloutWork
from workers.samplers.transformers import TransformersSampler
from workers.sandbox import open_sandbox

pytestmark = pytest.mark.integration

MODEL = find_folder("trainer/nano/model")
SOURCE = """import random


class SeekEnv:
    def __init__(self, max_turns=25):
        self.left = 0

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.left = 2 + self.rng.randrange(2)
        return f"\\x1b[2J seek [red]{self.rng.randrange(100)}[/red] <eos>", {}

    def step(self, action):
        self.left -= 1
        return f"{len(action)} letters {self.rng.randrange(100)}", 0.5, self.left == 0, False, {}
"""
Ran = tuple[int, str, str]


@dataclass
class Played:
    """A finished run of two units; in the second one, the last reward of the first play was changed on its way into the log."""

    run_id: str
    broker: BrokerSettings
    policies: Path
    plays: list[RolloutFinished]
    changed: RolloutFinished


@pytest.fixture(scope="module")
def played(broker_settings: BrokerSettings, tmp_path_factory: pytest.TempPathFactory) -> Played:
    run_id, folder = f"replay-{time.time_ns()}", tmp_path_factory.mktemp("policies")
    recipe = build_recipe({"rollout": {"max_turns": 4, "context_tokens": 512}})
    run = start_run(recipe, ProcessContext(broker=broker_settings), str(folder), run_id)
    policy = publish(run_id, folder)
    sampler = TransformersSampler(threads=recipe.processes.threads)
    sampler.load(policy, Path(policy.place))
    units = [make_unit(run_id, number) for number in range(2)]
    sandbox = open_sandbox("zygote")
    try:
        work = RolloutWork(sampler, Held(), sandbox, load_dialect(run.dialect, MODEL), recipe.rollout, lambda: False)  # type: ignore[arg-type]  # nothing to fetch
        outputs = [work.run(unit, Reference(topic="", partition=0, offset=0, id="")) for unit in units]
    finally:
        sandbox.close()
    plays: list[Any] = [record for output in outputs for _, record in output]
    first = len(units[0].plays)
    turns = [*plays[first].turns[:-1], msgspec.structs.replace(plays[first].turns[-1], reward=0.25)]
    plays[first] = msgspec.structs.replace(plays[first], turns=turns)
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.POLICY_PUBLISHED, policy), *((Topic.ROLLOUT_REQUESTED, unit) for unit in units)])
        places = producer.send_all([(Topic.ROLLOUT_FINISHED, play) for play in plays])
        producer.send_all([(Topic.ROLLOUT_FINISHED, plays[0])])  # a copy
        producer.send_all(ending(run_id, places))
    return Played(run_id, broker_settings, folder, plays[:first], plays[first])


class Held:
    """A feed whose sampler holds the policy already."""

    def hold(self, version: int, *, newest: bool = False) -> None:
        """Nothing to wait for."""


def publish(run_id: str, folder: Path) -> PolicyPublished:
    """The nano model as version 0, with a canary from a plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    digest, place = PolicyStore(str(folder)).publish(0, MODEL)
    tokens = list(range(20, 60))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)(torch.tensor([tokens])).logits[0]
    logprobs = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(tokens[1:]).unsqueeze(-1)).squeeze(-1).tolist()
    canary = Canary(tokens=pack_ints(tokens), logprobs=pack_floats(logprobs))
    return PolicyPublished(run_id=run_id, event_id="policy-0", version=0, digest=digest, place=place, canary=canary)


def make_unit(run_id: str, number: int) -> RolloutRequested:
    env, unit = ids.env_id(run_id, 0, number, 0), ids.rollout_unit_id(run_id, 0, number)
    plays = [
        Play(
            play_id=(name := ids.play_id(env, 0, arm, index)),
            env_id=env,
            arm=arm,
            index=index,
            env_seed=ids.env_seed(env, 0, index),
            sampling_seed=ids.sampling_seed(name),
        )
        for arm in (PLAIN, HINTED)
        for index in range(4)
    ]
    return RolloutRequested(
        run_id=run_id,
        event_id=unit,
        unit_id=unit,
        step=0,
        generation=0,
        policy_version=0,
        settings=SamplingSettings(temperature=0.8, top_p=0.95, top_k=30, max_tokens=12),
        max_turns=4,
        context_tokens=512,
        environments=[PlayEnvironment(env_id=env, source=SOURCE, hint="few letters", witness_min_return=0.5, reward_min=0.0)],
        plays=plays,
        plays_expected={env: len(plays)},
    )


def ending(run_id: str, places: list[Reference]) -> list[tuple[Topic, Record]]:
    """The records that end a run of one step, which trained the plays at these places."""
    samples = [
        Sample(reference=place, sample_id=place.id, role="agent", advantage=0.5, policy_version=0, lag=0) for place in places
    ]
    counts: dict[str, Any] = {"steps": 1, "drain_steps": 0, "agent_samples": len(samples), "designer_samples": 0}
    return [
        (
            Topic.BATCH_READY,
            BatchReady(run_id=run_id, event_id="b", step=0, generation=0, designer_generation=-1, samples=samples),
        ),
        (
            Topic.STEP_FINISHED,
            StepFinished(run_id=run_id, event_id="s", step=0, drain=False, seconds={"wait": 0.5, "step": float("nan")}),
        ),
        (
            Topic.RUN_FINISHED,
            RunFinished(run_id=run_id, event_id="f", final_version=0, final_digest="", cause="done", **counts),
        ),
    ]


@pytest.fixture
def spade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command as a user who has started nothing: its exit code, output and errors."""
    monkeypatch.setenv("SPADE_STATE", str(tmp_path / "state"))
    for name in ("SPADE_BROKER", "SPADE_STORE", "SPADE_RUN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Ran:
        code = run_app([str(one) for one in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def archive(spade: Callable[..., Ran], played: Played, tmp_path: Path) -> Path:
    """The run's archive, written by the command."""
    code, out, err = spade("archive", played.run_id, "--out", tmp_path / "a", "--broker", played.broker.address)
    assert code == 0, err
    assert "read back, counts and digests are equal" in out
    assert "nothing was deleted" in out
    return tmp_path / "a"


@pytest.fixture(scope="module")
def filled(played: Played, store: LocalStore) -> Iterator[ClickHouseStore]:
    """The store, with the run in it as the memory sink stored it."""
    client = connect(store.dsn)
    sink = MemorySink(played.broker, client, played.run_id, is_older=lambda _: True)
    end = time.monotonic() + 90
    while not sink.drain():
        assert time.monotonic() < end, "the sink did not reach the end of the log"
        sink.step()
    sink.close()
    yield client
    client.close()


def test_an_episode_of_the_log_replays_equal_bit_for_bit(spade: Callable[..., Ran], played: Played) -> None:
    play = played.plays[0]
    code, out, err = spade("replay", play.play_id, "--broker", played.broker.address, "--json")
    assert code == 0, (out, err)
    told = json.loads(out)
    assert [(check["part"], check["outcome"]) for check in told["checks"]] == [("actions", "equal"), ("sampling", "equal")]
    assert [turn["observation"] for turn in told["turns"]] == [turn.observation for turn in play.turns]
    assert "the other 7 plays of its unit" in told["checks"][1]["detail"]
    assert told["exit"] == 0


def test_a_reward_that_was_changed_in_the_log_is_found(spade: Callable[..., Ran], played: Played) -> None:
    code, out, _ = spade("replay", played.changed.play_id, "--broker", played.broker.address)
    last = len(played.changed.turns) - 1
    assert code == 1
    assert f"actions   differs: turn {last}: reward 0.5 where 0.25 was seen" in out
    assert "sampling  differs: " in out
    assert "\\x1b[2J seek [red]" in out, "what an environment says is shown escaped"
    assert "\x1b" not in out


def test_an_archive_replays_without_a_broker_and_without_the_policy_the_actions_only(
    spade: Callable[..., Ran], played: Played, archive: Path, tmp_path: Path
) -> None:
    play = played.plays[-1]
    assert spade("replay", play.play_id, "--archive", archive)[0] == 0
    moved = tmp_path / "moved"
    played.policies.rename(moved)
    try:
        code, out, _ = spade("replay", play.play_id, "--archive", archive)
        assert code == 2
        assert "actions   equal" in out
        assert "sampling  unchecked: policy 0 is no longer kept" in out
        assert spade("replay", play.play_id, "--archive", archive, "--actions-only")[0] == 0
        assert spade("replay", play.play_id, "--archive", archive, "--policies", moved)[0] == 0
    finally:
        moved.rename(played.policies)


def test_the_store_leads_to_an_episode_without_reading_the_log_through(
    spade: Callable[..., Ran], played: Played, filled: ClickHouseStore, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers import replay

    def never(*_: object) -> None:
        raise AssertionError("the log was read through")

    monkeypatch.setattr(replay, "find_episode", never)
    places = ("--broker", played.broker.address, "--store", store.dsn)
    assert spade("replay", played.plays[1].play_id, "--actions-only", *places)[0] == 0
    monkeypatch.undo()
    code, _, err = spade("replay", "nobody", "--actions-only", *places)
    assert code == 2
    assert "looking through the log" in err


def test_a_run_that_goes_on_is_not_archived(
    spade: Callable[..., Ran], broker_settings: BrokerSettings, run_id: str, tmp_path: Path
) -> None:
    start_run(build_recipe({}), ProcessContext(broker=broker_settings), str(tmp_path / "p"), run_id)
    code, _, err = spade("archive", run_id, "--out", tmp_path / "a", "--broker", broker_settings.address)
    assert code == 2
    assert f"run {run_id} has not finished: 0 of 400 steps are trained" in err
    assert not (tmp_path / "a").exists()


def other_database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


@pytest.mark.parametrize("origin", ["log", "archive"])
def test_a_rebuild_gives_the_same_tables_and_one_changed_row_is_told_by_its_table(
    spade: Callable[..., Ran],
    played: Played,
    filled: ClickHouseStore,
    store: LocalStore,
    archive: Path,
    origin: str,
) -> None:
    again = other_database(store.dsn, f"again_{origin}")
    read = ("--archive", archive) if origin == "archive" else ("--broker", played.broker.address, "--run", played.run_id)
    code, out, err = spade("memory", "rebuild", *read, "--store", again, "--compare", store.dsn, "--json")
    assert code == 0, (out, err)
    told = json.loads(out)
    assert told["differing"] == []
    rows = {one["table"]: one["rows"] for one in told["tables"]}
    assert rows["episodes"] == 16
    assert (rows["runs"], rows["requests"], rows["batches"], rows["steps"], rows["policies"]) == (2, 2, 1, 1, 1)

    code, _, err = spade("memory", "rebuild", *read, "--store", again)
    assert code == 2
    assert f"rows of run {played.run_id}" in err

    client = connect(again)
    try:
        (row,) = client.query("SELECT * FROM episodes FINAL ORDER BY play_id LIMIT 1")
        forged = {**row, "episode_return": row["episode_return"] + 0.5, "_version": row["_version"] + 1}
        client.insert("episodes", list(forged), [list(forged.values())])
    finally:
        client.close()
    code, out, _ = spade("memory", "digest", "--run", played.run_id, "--store", again, "--compare", store.dsn)
    assert code == 1
    assert "differing: episodes" in out


def test_every_table_of_the_log_and_every_column_of_it_are_in_the_digest(
    filled: ClickHouseStore, store: LocalStore, one_of_each: Callable[[str], list[tuple[Topic, Record]]]
) -> None:
    assert log_tables(filled) == sorted({name for names in TABLES.values() for name in names})
    dsn = other_database(store.dsn, "columns")
    migrate(dsn)
    client = connect(dsn)
    try:
        base = {one.table: one for one in digest_tables(client, "r")}
        assert all(one.rows == 0 for one in base.values())
        client.insert("steps", ["run_id", "step", "_offset"], [["r", 1, 5]])
        once = {one.table: one for one in digest_tables(client, "r")}
        client.insert("steps", ["run_id", "step", "_offset"], [["r", 1, 6]])
        assert {one.table: one for one in digest_tables(client, "r")} == once, "a copy of a row, and where it lay, change nothing"
        for column, value in (("loss", 0.5), ("trained", ["x"]), ("seconds", {"wait": 1.0}), ("event_id", "e")):
            client.insert("steps", ["run_id", "step", "_version", column], [["r", 1, 9, value]])
            now = {one.table: one for one in digest_tables(client, "r")}
            assert now["steps"].digest != once["steps"].digest, column
            assert {table: one for table, one in now.items() if table != "steps"} == {
                table: one for table, one in once.items() if table != "steps"
            }
            once = now
    finally:
        client.close()


def test_an_archive_holds_what_the_log_held(archive: Path, played: Played) -> None:
    opened = Archive(archive)
    assert opened.manifest.run_id == played.run_id
    records = [one.record for one in opened.scan(list(Topic))]
    assert opened.manifest.records == len(records) == 1 + 1 + 2 + 17 + 3
    assert {record.run_id for record in records} == {played.run_id}
    assert json.loads((archive / "deletable.json").read_text())["version"] == 1
