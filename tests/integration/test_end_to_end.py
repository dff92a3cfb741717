"""The whole loop, as a user starts it: `spade run` on a tiny recipe with its own broker and store, real jail, real DeepSpeed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.clickhouse import ClickHouseStore, connect
from infra.kafka import make_consumer
from infra.lineage import read_lineage
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.policystore import PolicyStore
from infra.report import queries
from schemas.codec import decode
from schemas.common import Record, unpack_floats, unpack_ints
from schemas.design import DesignRequested, EnvProposed, EnvRejected, EnvValidated, SlotsClosed
from schemas.errors import SettingsError
from schemas.process import BrokerSettings
from schemas.rollout import PROBES, RolloutFinished
from schemas.run import RunFinished
from schemas.score import EnvScored, GenerationClosed
from schemas.topics import Topic
from schemas.train import BatchReady, PolicyPublished, StepFinished
from tests.tinyrun import STEPS, TinyRun

pytestmark = pytest.mark.integration
LIMIT_S = 900


@dataclass
class Finished:
    """A finished run: its log, opened again, and its store."""

    records: dict[Topic, list[Record]]
    store: ClickHouseStore
    run_id: str
    folder: Path
    output: str
    dsn: str

    def of(self, topic: Topic, kind: type[Record]) -> list[Record]:
        found = self.records[topic]
        assert all(type(record) is kind for record in found)
        return found


def read_everything(address: str) -> dict[Topic, list[Record]]:
    """Every record of every topic, in log order within a partition."""
    from kafka import TopicPartition

    settings = BrokerSettings(address=address)
    consumer = make_consumer(settings, None, ())
    found: dict[Topic, list[Record]] = {topic: [] for topic in Topic}
    try:
        parts = [TopicPartition(topic.wire, number) for topic in Topic for number in consumer.partitions_for_topic(topic.wire)]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        while any(consumer.position(part) < ends[part] for part in parts):
            for part, messages in consumer.poll(timeout_ms=500).items():
                topic = next(topic for topic in Topic if topic.wire == part.topic)
                found[topic] += [decode(topic, message.value) for message in messages]
    finally:
        consumer.close()
    return found


@pytest.fixture(scope="module")
def finished(tiny_run: TinyRun) -> Iterator[Finished]:
    folder = tiny_run.folder
    broker, store = LocalBroker.start(folder / "broker"), LocalStore.start(folder / "store")
    try:
        records = read_everything(broker.address)
        client = connect(store.dsn)
        yield Finished(records, client, records[Topic.RUN_STARTED][0].run_id, folder, tiny_run.output, store.dsn)
        client.close()
    finally:
        store.stop()
        broker.stop()


def test_every_stage_left_its_records(finished: Finished) -> None:
    for topic in Topic:
        if topic not in (
            Topic.DEAD_LETTER,
            Topic.EVAL_FINISHED,
            Topic.ENV_REJECTED,
            Topic.AUDIT_REQUESTED,
            Topic.AUDIT_FINISHED,
            Topic.RUN_ENDING,
        ):
            assert finished.records[topic], f"{topic.wire} is empty"
    assert not finished.records[Topic.DEAD_LETTER]
    assert all(record.run_id == finished.run_id for records in finished.records.values() for record in records)


def test_steps_policies_and_generations_are_complete_and_in_order(finished: Finished) -> None:
    steps = [record for record in finished.of(Topic.STEP_FINISHED, StepFinished) if isinstance(record, StepFinished)]
    assert [step.step for step in steps] == list(range(len(steps)))
    assert [step.step for step in steps if not step.drain] == list(range(STEPS))
    policies = [record for record in finished.records[Topic.POLICY_PUBLISHED] if isinstance(record, PolicyPublished)]
    assert [policy.version for policy in policies] == list(range(len(steps) + 1))
    assert len({policy.digest for policy in policies}) > STEPS // 2
    closed = [record for record in finished.records[Topic.GENERATION_CLOSED] if isinstance(record, GenerationClosed)]
    assert [one.generation for one in closed] == list(range(STEPS))
    last = finished.records[Topic.RUN_FINISHED][0]
    assert isinstance(last, RunFinished)
    assert (last.steps, last.final_version) == (STEPS, policies[-1].version)
    assert last.agent_samples > 0
    assert last.designer_samples > 0


def test_weights_changed_and_the_last_policy_is_whole(finished: Finished) -> None:
    from safetensors.numpy import load_file

    policies = {
        record.version: record for record in finished.records[Topic.POLICY_PUBLISHED] if isinstance(record, PolicyPublished)
    }
    store = PolicyStore(str(finished.folder / "policies"))
    first, last = (load_file(store.fetch(policies[version]) / "model.safetensors") for version in (0, max(policies)))
    assert first.keys() == last.keys()
    moved = max(float(abs(first[name] - last[name]).max()) for name in first)
    assert 0 < moved < 0.1


def test_designs_are_judged_once_and_the_valid_ones_played(finished: Finished) -> None:
    proposed = {record.env_id for record in finished.records[Topic.ENV_PROPOSED] if isinstance(record, EnvProposed)}
    valid = {record.env_id for record in finished.records[Topic.ENV_VALIDATED] if isinstance(record, EnvValidated)}
    refused = {record.env_id for record in finished.records[Topic.ENV_REJECTED] if isinstance(record, EnvRejected)}
    assert len(proposed) == 8 * STEPS
    assert valid | refused == proposed
    assert not valid & refused
    assert len(valid) > len(proposed) // 2
    members = {
        member.env_id
        for record in finished.records[Topic.SLOTS_CLOSED]
        if isinstance(record, SlotsClosed)
        for member in record.members
    }
    plays = [record for record in finished.records[Topic.ROLLOUT_FINISHED] if isinstance(record, RolloutFinished)]
    assert members <= valid
    own = [play for play in plays if play.arm not in PROBES]
    assert {play.env_id for play in own} == members
    assert len(own) == len({play.play_id for play in own}) == 4 * len(members)
    assert not [play.lost for play in plays if play.lost]
    assert any(play.won for play in plays)


def test_both_arms_played_the_same_seeds(finished: Finished) -> None:
    seeds: dict[str, dict[str, list[int]]] = {}
    for play in finished.records[Topic.ROLLOUT_FINISHED]:
        assert isinstance(play, RolloutFinished)
        seeds.setdefault(play.env_id, {}).setdefault(play.arm, []).append(play.env_seed)
    for arms in seeds.values():
        assert sorted(arms["plain"]) == sorted(arms["hint"])
        assert sorted(arms.get("probe-plain", [])) == sorted(arms.get("probe-hint", []))
    scored = [record for record in finished.records[Topic.ENV_SCORED] if isinstance(record, EnvScored)]
    assert {record.env_id for record in scored} == set(seeds)
    assert all(record.pairs == 2 for record in scored)


def test_older_environments_are_played_again_untrained_and_memory_measures_them(finished: Finished) -> None:
    closed = [record for record in finished.records[Topic.GENERATION_CLOSED] if isinstance(record, GenerationClosed)]
    probed = {(one.generation, probe.env_id): probe for one in closed for probe in one.probes}
    assert probed
    assert all(probe.generation <= generation - 2 for (generation, _), probe in probed.items())
    plays = [record for record in finished.records[Topic.ROLLOUT_FINISHED] if isinstance(record, RolloutFinished)]
    probe_plays = [play for play in plays if play.arm in PROBES]
    assert {(play.step, play.env_id) for play in probe_plays} == probed.keys()  # K = 1: a step is a generation
    assert len(probe_plays) == 4 * len(probed)
    batches = [record for record in finished.records[Topic.BATCH_READY] if isinstance(record, BatchReady)]
    assert not {play.play_id for play in probe_plays} & {sample.sample_id for batch in batches for sample in batch.samples}
    sql = "SELECT measured, env_id, win_rate FROM standings FINAL WHERE measured > generation"
    stored = {(row["measured"], row["env_id"]): row["win_rate"] for row in finished.store.query(sql)}
    assert stored == {key: probe.win_rate for key, probe in probed.items()}
    (_, env_id), _ = next(iter(probed.items()))
    story = read_lineage(finished.store, env_id)
    assert [row["probed"] for row in story.measured] == [0, *[1] * (len(story.measured) - 1)]
    assert {row["arm"] for row in story.plays} == {"plain", "hint", *PROBES}


def test_episodes_hold_every_token_the_policy_saw(finished: Finished) -> None:
    for play in finished.records[Topic.ROLLOUT_FINISHED]:
        assert isinstance(play, RolloutFinished)
        tokens, logprobs = unpack_ints(play.tokens), unpack_floats(play.logprobs)
        sampled = {place for span in play.spans for place in range(span.start, span.end)}
        assert len(tokens) == len(logprobs)
        assert sampled
        assert max(sampled) < len(tokens)
        assert all(logprob <= 1e-6 for logprob in logprobs)
        assert all(logprobs[place] == 0 for place in range(len(tokens)) if place not in sampled)
        assert all(span.policy_version == max(0, play.step - 1) for span in play.spans)


def test_sampler_and_trainer_agree_on_log_probabilities(finished: Finished) -> None:
    # Steps 0 and 1 are sampled by versions 0 and 0; step 0 trains version 0: lag 0, so the two sides computed the same numbers.
    first = finished.records[Topic.STEP_FINISHED][0]
    assert isinstance(first, StepFinished)
    agent = first.roles["agent"]
    assert agent.samples > 0
    assert agent.lag_max == 0
    assert 0 <= agent.logratio_max < 1e-3
    assert agent.ess > 0.999
    later = [
        record.roles["agent"].lag_max
        for record in finished.records[Topic.STEP_FINISHED][1:STEPS]
        if isinstance(record, StepFinished)
    ]
    assert later == [1] * (STEPS - 1)


def test_what_was_trained_is_what_the_batches_named(finished: Finished) -> None:
    batches = [record for record in finished.records[Topic.BATCH_READY] if isinstance(record, BatchReady)]
    steps = [record for record in finished.records[Topic.STEP_FINISHED] if isinstance(record, StepFinished)]
    assert [sorted(step.trained) for step in steps] == [sorted(one.sample_id for one in batch.samples) for batch in batches]
    trained = [sample for step in steps for sample in step.trained]
    assert len(trained) == len(set(trained))


@pytest.mark.parametrize(
    ("table", "topics"),
    [
        ("designs", (Topic.ENV_PROPOSED,)),
        ("verdicts", (Topic.ENV_VALIDATED, Topic.ENV_REJECTED)),
        ("episodes", (Topic.ROLLOUT_FINISHED,)),
        ("scores", (Topic.ENV_SCORED,)),
        ("generations", (Topic.GENERATION_CLOSED,)),
        ("batches", (Topic.BATCH_READY,)),
        ("steps", (Topic.STEP_FINISHED,)),
        ("policies", (Topic.POLICY_PUBLISHED,)),
    ],
)
def test_store_holds_each_record_once(finished: Finished, table: str, topics: tuple[Topic, ...]) -> None:
    rows = finished.store.query(f"SELECT count() AS n, uniqExact(event_id) AS ids FROM {table} FINAL")
    expected = len({record.event_id for topic in topics for record in finished.records[topic]})
    assert (rows[0]["n"], rows[0]["ids"]) == (expected, expected)
    assert expected > 0


def test_report_reads_the_run_from_the_store(finished: Finished) -> None:
    facts = queries.read_run(finished.store, finished.run_id)
    assert [row.generation for row in facts.generations] == list(range(STEPS))
    assert all(row.seconds.keys() >= {"design", "gate", "play"} for row in facts.generations)
    assert len(facts.steps) == len(finished.records[Topic.STEP_FINISHED])
    assert facts.gate.judged + facts.gate.taken >= sum(row.valid for row in facts.generations)
    assert 0 < facts.gate.median_cpu_s <= facts.gate.most_cpu_s <= facts.gate.total_cpu_s
    assert facts.examples
    assert facts.episode is not None
    assert facts.episode.turns


def test_why_tells_the_whole_story_of_each_environment(finished: Finished) -> None:
    plays: dict[str, set[str]] = {}
    for play in finished.of(Topic.ROLLOUT_FINISHED, RolloutFinished):
        assert isinstance(play, RolloutFinished)
        plays.setdefault(play.env_id, set()).add(play.play_id)
    units = [record for record in finished.records[Topic.DESIGN_REQUESTED] if isinstance(record, DesignRequested)]
    slots = {slot.env_id: slot for unit in units for slot in unit.slots}
    batches = [record for record in finished.records[Topic.BATCH_READY] if isinstance(record, BatchReady)]
    stories = {env_id: read_lineage(finished.store, env_id) for env_id in slots}
    for env_id, story in stories.items():
        assert story.prompt["document_text"] == slots[env_id].document.text
        assert [parent["env_id"] for parent in story.parents] == [line.env_id for line in slots[env_id].memory]
        assert {row["play_id"] for row in story.plays} == plays.get(env_id, set())
        named = plays.get(env_id, set()) | {env_id}
        trained = {batch.step for batch in batches if named & {sample.sample_id for sample in batch.samples}}
        assert {row["step"] for row in story.trained} == trained
        children = {child for child, slot in slots.items() if env_id in {line.env_id for line in slot.memory}}
        assert {row["env_id"] for row in story.children} == children
    member = next(story for story in stories.values() if story.place == "member")
    assert member.reward is not None
    assert {rule["rule"] for rule in member.proof} >= {"witness", "replay"}
    assert any(story.parents for story in stories.values())
    refused = {record.env_id: record.rule for record in finished.records[Topic.ENV_REJECTED] if isinstance(record, EnvRejected)}
    told = {env_id: story.verdict["rule"] for env_id, story in stories.items() if story.verdict and story.verdict["rule"]}
    assert told == refused
    assert {env_id for env_id, story in stories.items() if story.place.startswith("refused")} == refused.keys()


def test_why_takes_the_beginning_of_an_id_and_names_what_it_can_not_find(finished: Finished) -> None:
    env_ids = [row["env_id"] for row in finished.store.query("SELECT env_id FROM prompts FINAL")]
    assert read_lineage(finished.store, env_ids[0][:13]).env_id == env_ids[0]
    with pytest.raises(SettingsError, match="knows no environment 'nothing'"):
        read_lineage(finished.store, "nothing")
    with pytest.raises(SettingsError, match="run other"):
        read_lineage(finished.store, env_ids[0], "other")
    shared = next(one[0] for one in env_ids if sum(other[0] == one[0] for other in env_ids) > 1)
    with pytest.raises(SettingsError, match="is the beginning of"):
        read_lineage(finished.store, shared)


def test_the_story_is_printed_and_given_as_json(finished: Finished) -> None:
    env_id = finished.store.query("SELECT env_id FROM verdicts FINAL WHERE valid LIMIT 1")[0]["env_id"]
    command = [sys.executable, "-P", "-m", "infra.cli", "why", env_id, "--store", finished.dsn]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert all(word in told for word in (env_id, "Document", "Verdict", "Plays", "What came of it"))
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=True).stdout)
    assert found["env_id"] == env_id
    assert found["proof"]


def test_chaos_check_finds_every_guarantee_held(finished: Finished) -> None:
    broker, store = LocalBroker.attach(finished.folder / "broker"), LocalStore.attach(finished.folder / "store")
    assert broker is not None
    assert store is not None
    where = ["--broker", broker.address, "--store", store.dsn]
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "infra.cli", "chaos", "--check", finished.run_id, *where],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "all 9 guarantees held" in answer.stdout


def test_nothing_of_the_run_is_left(finished: Finished) -> None:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    ours = [line for line in listed.splitlines() if str(finished.folder) in line]
    assert all("kafka.Kafka" in line or "store_server" in line for line in ours), ours
    assert finished.run_id in finished.output
