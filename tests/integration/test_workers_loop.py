"""Design, validate and rollout workers as processes, started as a user would, on the real broker, jail and nano model."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import TopicPartition

from infra.dialects import load_dialect
from infra.kafka import RecordFetcher, fetch, make_consumer, make_producer
from infra.policystore import PolicyStore
from infra.runs import Run, find_folder, start_run
from infra.suites import load_suite
from schemas import ids
from schemas.codec import decode
from schemas.common import Record, Reference, SamplingSettings, pack_floats, pack_ints, unpack_floats, unpack_ints
from schemas.design import DesignRequested, DesignSlot, Document, EnvProposed, EnvRejected, EnvValidated
from schemas.errors import RecordError
from schemas.process import BrokerSettings, ProcessContext
from schemas.recipes import build_recipe
from schemas.rollout import HINTED, PLAIN, AuditFinished, AuditRequested, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.run import RunFinished
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import Canary, PolicyPublished
from workers.evaluate import evaluate, instances_of
from workers.rollout import RolloutWork
from workers.samplers.transformers import TransformersSampler
from workers.sandbox import Sandbox, open_sandbox
from workers.validate import ValidateWork

pytestmark = pytest.mark.integration

MODEL = find_folder("trainer/nano/model")
PLAIN_SETTINGS = SamplingSettings(max_tokens=12)
SEEK = """import random


class SeekEnv:
    def __init__(self, max_turns=25):
        self.left = 0

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.left = 2 + self.rng.randrange(3)
        return f"seek {self.rng.randrange(100)}", {}

    def step(self, action):
        self.left -= 1
        if action.startswith("boom"):
            return str(1 // 0), 0.0, False, False, {}
        return f"{len(action)} letters {self.rng.randrange(100)}", 0.5, self.left == 0, False, {}
"""
FICKLE = SEEK.replace("random.Random(seed)", "random.Random()")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> PolicyPublished:
    """The nano model as version 0 of any run, with a canary from a plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    digest, place = PolicyStore(str(tmp_path_factory.mktemp("policies"))).publish(0, MODEL)
    tokens = list(range(20, 60))
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)[:-1]
    chosen = logprobs.gather(-1, torch.tensor(tokens[1:]).unsqueeze(-1)).squeeze(-1).tolist()
    canary = Canary(tokens=pack_ints(tokens), logprobs=pack_floats(chosen))
    return PolicyPublished(run_id="", event_id="policy-0", version=0, digest=digest, place=place, canary=canary)


@pytest.fixture
def recipe() -> Recipe:
    return build_recipe({"rollout": {"max_turns": 5, "context_tokens": 512}, "design": {"train_rejected": False}})


@pytest.fixture
def run(broker_settings: BrokerSettings, run_id: str, recipe: Recipe, published: PolicyPublished) -> Run:
    """A run that has started, with its policy 0 published."""
    place = str(Path(published.place).parent)
    started = start_run(recipe, ProcessContext(broker=broker_settings), place, run_id)
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.POLICY_PUBLISHED, msgspec.structs.replace(published, run_id=run_id))])
    return started


@pytest.fixture
def work(broker_settings: BrokerSettings, run: Run, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts `spade work STAGE` for the run; what still lives at the end is killed by its id."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(stage: str) -> subprocess.Popen[bytes]:
        state = tmp_path / f"state-{len(begun)}"
        state.mkdir()
        command = [sys.executable, "-c", "from infra.cli import main; main()", "work", stage, "--broker", broker_settings.address]
        with (state / "log").open("wb") as log:
            process = subprocess.Popen([*command, "--run", run.run_id, "--state-dir", str(state)], stdout=log, stderr=log)
        begun.append(process)
        return process

    yield begin
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(30)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    jails = open_sandbox("zygote", slots=8)
    yield jails
    jails.close()


def finish(broker: BrokerSettings, run_id: str) -> None:
    record = RunFinished(
        run_id=run_id,
        event_id="finished",
        steps=0,
        drain_steps=0,
        final_version=0,
        final_digest="",
        agent_samples=0,
        designer_samples=0,
        cause="test",
    )
    with make_producer(broker) as producer:
        producer.send_all([(Topic.RUN_FINISHED, record)])


def wait_for_records(
    broker: BrokerSettings, topics: Sequence[Topic], run_id: str, enough: Callable[[list[Record]], bool], timeout_s: float = 240
) -> list[Record]:
    """Reads the run's records from the start until there are enough of them."""
    consumer = make_consumer(broker, None, ())
    parts = [TopicPartition(topic.wire, number) for topic in topics for number in range(12)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    found: list[Record] = []
    end = time.monotonic() + timeout_s
    try:
        while not enough(found):
            assert time.monotonic() < end, f"{len(found)} records of {run_id} in {timeout_s} s"
            for part, messages in consumer.poll(timeout_ms=100).items():
                for message in messages:
                    with contextlib.suppress(RecordError):  # other tests' bad bytes
                        record = decode(part.topic, message.value)
                        found += [record] if record.run_id == run_id else []
    finally:
        consumer.close()
    return found


def make_unit(run_id: str, number: int, environments: int = 2, seeds: int = 6) -> RolloutRequested:
    names = [ids.env_id(run_id, 0, number * environments + slot, 0) for slot in range(environments)]
    unit_id = ids.rollout_unit_id(run_id, 0, number)
    plays = [
        Play(
            play_id=ids.play_id(name, 0, arm, index),
            env_id=name,
            arm=arm,
            index=index,
            env_seed=ids.env_seed(name, 0, index),
            sampling_seed=ids.sampling_seed(ids.play_id(name, 0, arm, index)),
        )
        for name in names
        for arm in (PLAIN, HINTED)
        for index in range(seeds)
    ]
    return RolloutRequested(
        run_id=run_id,
        event_id=unit_id,
        unit_id=unit_id,
        step=0,
        generation=0,
        policy_version=0,
        settings=PLAIN_SETTINGS,
        max_turns=4,
        context_tokens=512,
        environments=[
            PlayEnvironment(env_id=name, source=SEEK, hint="use few letters", witness_min_return=0.5, reward_min=0.0)
            for name in names
        ],
        plays=plays,
        plays_expected=dict.fromkeys(names, 2 * seeds),
    )


class HeldPolicy:
    """A feed whose sampler holds the policy already."""

    def hold(self, version: int, *, newest: bool = False) -> None:
        """Nothing to wait for."""


def make_rollout_work(published: PolicyPublished, sandbox: Sandbox, recipe: Recipe) -> RolloutWork:
    sampler = TransformersSampler()
    sampler.load(published, Path(published.place))
    return RolloutWork(sampler, HeldPolicy(), sandbox, load_dialect("nano", MODEL), recipe.rollout, lambda: False)  # type: ignore[arg-type]


def told(record: Record) -> Any:
    return msgspec.structs.replace(record, created_at=0.0, tries=0)


def test_a_rollout_worker_killed_in_mid_unit_loses_no_play_and_repeats_them_equal(
    broker_settings: BrokerSettings,
    run: Run,
    work: Callable[[str], subprocess.Popen[bytes]],
    sandbox: Sandbox,
    recipe: Recipe,
    published: PolicyPublished,
) -> None:
    units = [make_unit(run.run_id, number) for number in range(4)]
    own = make_rollout_work(published, sandbox, recipe)
    at = Reference(topic="", partition=0, offset=0, id="")
    expected = {record.event_id: told(record) for unit in units for _, record in own.run(unit, at)}
    with make_producer(broker_settings) as producer:
        sent = [producer.send(Topic.ROLLOUT_REQUESTED, unit, partition=3 * number) for number, unit in enumerate(units)]
        producer.flush()
        assert [one.result().partition for one in sent] == [0, 3, 6, 9]
    first = work("rollout")
    wait_for_records(broker_settings, [Topic.ROLLOUT_FINISHED], run.run_id, lambda found: len(found) >= 1)
    first.send_signal(signal.SIGKILL)
    assert first.wait(30) == -signal.SIGKILL
    second = work("rollout")
    records = wait_for_records(
        broker_settings, [Topic.ROLLOUT_FINISHED], run.run_id, lambda found: len({one.event_id for one in found}) == len(expected)
    )
    finish(broker_settings, run.run_id)
    assert second.wait(120) == 0
    for record in records:
        assert told(record) == expected[record.event_id]
    plays = [record for record in expected.values() if isinstance(record, RolloutFinished)]
    assert {play.end_reason for play in plays} <= {"terminated", "turns", "env_error"}
    assert {play.arm for play in plays if any(turn.action for turn in play.turns)} == {PLAIN, HINTED}
    for play in plays:
        assert not play.lost
        sampled = sum(span.end - span.start for span in play.spans)
        assert sampled > 0
        assert len(unpack_floats(play.logprobs)) == len(unpack_ints(play.tokens))
        assert (play.terminated and play.episode_return == 0.5 and play.won) or play.episode_return == 0.0


def test_designs_pass_from_request_over_proposal_to_a_verdict_that_refers_to_it(
    broker_settings: BrokerSettings, run: Run, work: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    documents = sorted(find_folder("infra/corpus/nano").glob("*.txt")) or sorted(find_folder("infra/corpus/nano").glob("*.md"))
    slots = [
        DesignSlot(
            slot=number,
            design_attempt=0,
            env_id=ids.env_id(run.run_id, 0, number, 0),
            skill="Mathematical Reasoning",
            document=Document(document_id=str(number), title="", text=documents[number % len(documents)].read_text("utf-8")),
            group=str(number),
            sampling_seed=number,
        )
        for number in range(12)
    ]
    unit = DesignRequested(
        run_id=run.run_id,
        event_id="unit",
        unit_id="unit",
        generation=0,
        design_attempt=0,
        policy_version=0,
        settings=SamplingSettings(max_tokens=256),
        slots=slots,
    )
    with make_producer(broker_settings) as producer:
        producer.send_all([(Topic.DESIGN_REQUESTED, unit)])
    processes = [work("design"), work("validate")]
    verdicts = wait_for_records(
        broker_settings, [Topic.ENV_VALIDATED, Topic.ENV_REJECTED], run.run_id, lambda found: len(found) >= len(slots)
    )
    finish(broker_settings, run.run_id)
    assert [process.wait(120) for process in processes] == [0, 0]
    assert {getattr(verdict, "env_id", "") for verdict in verdicts} == {slot.env_id for slot in slots}
    valid = [verdict for verdict in verdicts if isinstance(verdict, EnvValidated)]
    rejected = [verdict for verdict in verdicts if isinstance(verdict, EnvRejected)]
    assert len(valid) + len(rejected) == len(slots)
    assert valid, [(verdict.rule, verdict.evidence) for verdict in rejected]
    proposals = fetch(broker_settings, [*(one.proposal for one in valid), *(one.proposal for one in rejected)])
    for verdict in valid:
        proposal = proposals[verdict.proposal.id]
        assert isinstance(proposal, EnvProposed)
        assert (proposal.env_id, proposal.source, proposal.hint) == (verdict.env_id, verdict.full_source, verdict.hint)
        assert "solution" in verdict.full_source
        assert "solution" not in verdict.source
        assert verdict.witness_min_return > 0
        assert (proposal.spans[0].policy_version, proposal.spans[0].end) == (0, len(unpack_ints(proposal.completion_tokens)))


def test_a_verdict_is_taken_over_by_the_worker_that_follows_a_killed_one(
    broker_settings: BrokerSettings, run: Run, work: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    honest = (Path(__file__).parents[1] / "environments" / "sum_puzzle.py").read_text()
    sources = {"honest": honest, "bad": honest.replace("1.0 if right else 0.0", "1.0")}

    def propose(*names: str) -> None:
        records = [
            EnvProposed(
                run_id=run.run_id,
                event_id=name,
                env_id=name,
                unit_id="u",
                generation=0,
                slot=0,
                design_attempt=0,
                skill="s",
                document_id="d",
                group="g",
                source=sources[name.split("-")[0]],
                hint="carry the one",
            )
            for name in names
        ]
        with make_producer(broker_settings) as producer:
            producer.send_all([(Topic.ENV_PROPOSED, record) for record in records])

    def verdicts(count: int) -> dict[str, Any]:
        topics = [Topic.ENV_VALIDATED, Topic.ENV_REJECTED]
        found = wait_for_records(  # a killed worker's may be there twice
            broker_settings, topics, run.run_id, lambda records: len({record.event_id for record in records}) >= count
        )
        found.reverse()  # of two copies the first counts
        return {record.env_id: record for record in found if isinstance(record, EnvValidated | EnvRejected)}

    propose("honest-1", "bad-1")
    first = work("validate")
    verdicts(2)
    first.send_signal(signal.SIGKILL)
    assert first.wait(30) == -signal.SIGKILL
    propose("honest-2", "bad-2")
    second = work("validate")
    found = verdicts(4)
    finish(broker_settings, run.run_id)
    assert second.wait(120) == 0
    assert isinstance(found["honest-2"], EnvValidated)
    assert (found["bad-2"].rule, found["bad-2"].evidence) == ("silent", found["bad-1"].evidence)
    for kind in ("honest", "bad"):
        judged, taken = found[f"{kind}-1"], found[f"{kind}-2"]
        assert (judged.verdict_from, taken.verdict_from) == ("", judged.event_id)
        assert judged.gate_cpu_s > 0
        assert (taken.gate_cpu_s, taken.gate_wall_s) == (0.0, 0.0)
        assert (taken.proof, taken.causation_id) == (judged.proof, f"{kind}-2")
    assert found["honest-2"].signature == found["honest-1"].signature


def test_an_audit_repeats_a_play_of_the_log_in_a_fresh_jail_and_tells_a_fickle_environment(
    broker_settings: BrokerSettings, run_id: str, sandbox: Sandbox, recipe: Recipe, published: PolicyPublished
) -> None:
    unit = make_unit(run_id, 0, environments=1, seeds=2)
    outputs = make_rollout_work(published, sandbox, recipe).run(unit, Reference(topic="", partition=0, offset=0, id=""))
    with make_producer(broker_settings) as producer:
        places = producer.send_all(outputs)
    fresh, fetcher = open_sandbox("fresh"), RecordFetcher(broker_settings)
    try:
        validate = ValidateWork(sandbox, fresh, fetcher, recipe.rollout.max_turns, tries=3)
        results = []
        for source in (SEEK, FICKLE):
            for place in places:
                request = AuditRequested(
                    run_id=run_id, event_id="a", play_id=place.id, env_id="e", step=0, generation=0, source=source, play=place
                )
                ((_, result),) = validate.run(request, place)
                assert isinstance(result, AuditFinished)
                results.append(result)
    finally:
        fetcher.close()
        fresh.close()
    assert [result.equal for result in results] == [True] * 4 + [False] * 4
    assert all("observation" in result.difference or "where it" in result.difference for result in results[4:])


def test_an_evaluation_pairs_instances_whatever_the_policy_and_repeats_itself(
    sandbox: Sandbox, published: PolicyPublished
) -> None:
    recipe = build_recipe(
        {"rollout": {"context_tokens": 512, "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 24}}}
    )
    items = load_suite("nano")
    assert [(one.item.env_id, one.index) for one in instances_of(items[:3], 2, 5)] == [
        (items[0].env_id, 0),
        (items[1].env_id, 0),
        (items[2].env_id, 0),
        (items[0].env_id, 1),
        (items[1].env_id, 1),
    ]
    place = str(Path(published.place).parent)
    first = evaluate(recipe, published, policy_place=place, run_id="r", limit=30, sandbox=sandbox)
    again = evaluate(recipe, MODEL, limit=30, sandbox=sandbox)
    assert first.items == len(first.won) == 30
    assert first.won == again.won
    assert (first.policy_version, first.policy_digest, again.policy_version) == (0, published.digest, -1)
    assert first.win_rate == sum(first.won) / 30
    assert set(first.by_family) <= {item.family for item in items}
    assert evaluate(recipe, MODEL, limit=30, hinted=True, sandbox=sandbox).sampling == "sampled, with hint"
