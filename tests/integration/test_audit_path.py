"""An environment that the gate admits and that misbehaves in plays: audited, evicted, its plays void, and the report says so.

Real gate, jails, dialect, joins, broker and store; only the agent is scripted.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.clickhouse import ClickHouseStore, connect
from infra.dialects import load_dialect
from infra.dialects.nano import NanoDialect
from infra.kafka import RecordFetcher, make_producer
from infra.local.store import LocalStore
from infra.report import page, queries, terminal
from infra.runs import find_folder
from schemas import ids
from schemas.common import Record, Reference, SamplingSettings
from schemas.design import EnvProposed, EnvValidated, SlotsClosed
from schemas.process import BrokerSettings
from schemas.rollout import HINTED, PLAIN, AuditFinished, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.score import EnvScored, GenerationClosed
from schemas.settings import Recipe
from schemas.topics import BY_RECORD
from schemas.train import AGENT, BatchReady, PolicyPublished
from streams.batch import BatchJoin
from streams.closing import Signatures, close_slots
from streams.score import ScoreJoin
from streams.stage import Join, Positioned
from tests.planted import HINT, SUM
from tests.streamworld import small_recipe
from workers.memory import MemorySink
from workers.rollout import RolloutWork
from workers.samplers.base import SampleRequest, SampleResult
from workers.sandbox import Sandbox, open_sandbox
from workers.validate import ValidateWork

pytestmark = pytest.mark.integration

MODEL = find_folder("trainer/nano/model")
DIG = """        if "d" in action and "g" in action and len(action) == 3:
            return {found}, 0.0, False, False, {{}}
        self.over = True
"""
HONEST = (
    SUM.replace("        self.over = True\n        right", DIG.format(found="'nothing here'") + "        right")
    .replace("if self.over:", "if self.over or self.turn() > 20:")
    .replace("    def step(", "    def turn(self):\n        self.turns += 1\n        return self.turns\n\n    def step(")
    .replace("self.over = False\n", "self.over = False\n        self.turns = 0\n")
)
# honest on every path that the gate plays; digging draws from the machine's own randomness
FICKLE = HONEST.replace("'nothing here'", "f'found {random.Random().random()} <script>[bold red]'")
SEEDS = 3


class Digger:
    """Digs in the first turn of each play, then answers. See workers.samplers.base.Sampler."""

    policy_version = 0
    policy_digest = "digest"
    context_tokens = 512

    def __init__(self, dialect: NanoDialect) -> None:
        self._dialect = dialect

    def load(self, published: PolicyPublished, folder: Path) -> None:
        """Has no weights."""

    def reset_cache(self) -> None:
        """Holds nothing."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        results = []
        for request in requests:
            first = "<act>dig" not in self._dialect.decode(request.prompt)
            tokens = self._dialect.write_turn("", "dig" if first else "7")
            results.append(SampleResult(tokens, [-1.0] * len(tokens), "stop"))
        return results


class HeldPolicy:
    """A feed whose sampler holds the policy already."""

    def hold(self, version: int, *, newest: bool = False) -> None:
        """Nothing to wait for."""


class Log:
    """Writes records to the broker and remembers where each one stands."""

    def __init__(self, broker: BrokerSettings) -> None:
        self._broker = broker
        self.written: list[Record] = []

    def write(self, records: Sequence[Record]) -> list[Positioned]:
        with make_producer(self._broker) as producer:
            places = producer.send_all([(BY_RECORD[type(record)], record) for record in records])
        self.written += records
        return [
            Positioned(BY_RECORD[type(record)], place.partition, place.offset, record)
            for record, place in zip(records, places, strict=True)
        ]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    jails = open_sandbox("zygote", slots=4)
    yield jails
    jails.close()


@pytest.fixture
def validate(sandbox: Sandbox, broker_settings: BrokerSettings) -> Iterator[ValidateWork]:
    fresh, fetcher = open_sandbox("fresh"), RecordFetcher(broker_settings)
    yield ValidateWork(sandbox, fresh, fetcher, max_turns=25, tries=4)
    fetcher.close()
    fresh.close()


@pytest.fixture
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


def make_recipe() -> Recipe:
    return small_recipe(
        schedule={"steps": 1, "interval": 1, "delay": 1, "lag": 1, "lead": 1, "memory_lag": 2},
        design__duplicate="penalise",
        rollout={"plain_plays": SEEDS, "hint_plays": SEEDS, "seeds": SEEDS, "audit_share": 1.0},
    )


def propose(run_id: str, slot: int, source: str) -> EnvProposed:
    env_id = ids.env_id(run_id, 0, slot, 0)
    return EnvProposed(
        run_id=run_id,
        event_id=env_id,
        env_id=env_id,
        unit_id="u",
        generation=0,
        slot=slot,
        design_attempt=0,
        skill="logic",
        document_id="d",
        group="g",
        source=source,
        hint=HINT,
    )


def request_plays(run_id: str, slots: SlotsClosed) -> RolloutRequested:
    plays = [
        Play(
            play_id=(play_id := ids.play_id(member.env_id, 0, arm, index)),
            env_id=member.env_id,
            arm=arm,
            index=index,
            env_seed=ids.env_seed(member.env_id, 0, index),
            sampling_seed=ids.sampling_seed(play_id),
        )
        for member in slots.members
        for arm in (PLAIN, HINTED)
        for index in range(SEEDS)
    ]
    return RolloutRequested(
        run_id=run_id,
        event_id="unit",
        unit_id="unit",
        step=0,
        generation=0,
        policy_version=0,
        settings=SamplingSettings(max_tokens=12),
        max_turns=25,
        context_tokens=512,
        environments=[
            PlayEnvironment(
                env_id=member.env_id,
                source=member.source,
                hint=member.hint,
                witness_min_return=member.witness_min_return,
                reward_min=member.reward_min,
            )
            for member in slots.members
        ],
        plays=plays,
        plays_expected={member.env_id: 2 * SEEDS for member in slots.members},
    )


def feed(join: Join, records: Sequence[Positioned]) -> list[Record]:
    return [emit.record for positioned in records for emit in join.accept(positioned).records]


def store_all(broker: BrokerSettings, client: ClickHouseStore, run_id: str) -> None:
    sink = MemorySink(broker, client, run_id, is_older=lambda timestamp_ms: True)  # other tests have left bytes nobody can read
    end = time.monotonic() + 90
    while not sink.drain():
        assert time.monotonic() < end, "the sink did not reach the end of the log"
        sink.step()
    sink.close()


def test_environment_that_misbehaves_in_plays_alone_is_evicted_its_plays_void_and_the_report_says_so(
    broker_settings: BrokerSettings, client: ClickHouseStore, run_id: str, sandbox: Sandbox, validate: ValidateWork
) -> None:
    recipe, log = make_recipe(), Log(broker_settings)
    verdicts, signatures = {}, Signatures()
    for proposal in log.write([propose(run_id, slot, source) for slot, source in enumerate((HONEST, FICKLE))]):
        ((_, verdict),) = validate.run(proposal.record, proposal.reference)
        assert isinstance(verdict, EnvValidated), verdict
        signatures.note(verdict)
        verdicts[verdict.slot, 0] = verdict
    log.write(list(verdicts.values()))
    slots = close_slots(run_id, recipe, 0, 0, verdicts, signatures, [])
    (closed,) = log.write([slots])
    honest, fickle = (member.env_id for member in slots.members)

    dialect: Any = load_dialect("nano", MODEL)
    rollout = RolloutWork(Digger(dialect), HeldPolicy(), sandbox, dialect, recipe.rollout, lambda: False)  # type: ignore[arg-type]
    outputs = rollout.run(request_plays(run_id, slots), Reference(topic="", partition=0, offset=0, id=""))
    plays = [record for _, record in outputs]
    assert all(isinstance(play, RolloutFinished) and len(play.turns) == 2 and not play.lost for play in plays)

    score = ScoreJoin(run_id, recipe)
    score.learn(closed)
    requests = log.write(feed(score, log.write(plays)))
    assert len(requests) == len(plays) == 4 * SEEDS
    audits = [record for request in requests for _, record in validate.run(request.record, request.reference)]
    unequal = {audit.env_id for audit in audits if isinstance(audit, AuditFinished) and not audit.equal}
    assert unequal == {fickle}
    scores = log.write(feed(score, log.write(audits)))
    evicted = {one.record.env_id: one.record.evicted for one in scores if isinstance(one.record, EnvScored)}
    assert evicted[honest] == ""
    assert evicted[fickle].startswith("audit: play ")
    assert "found 0." in evicted[fickle]

    batch = BatchJoin(run_id, recipe)
    batch.learn(closed)
    decided = feed(batch, scores)
    log.write(decided)
    ready = next(record for record in decided if isinstance(record, BatchReady) and not record.drain)
    void = {play.event_id for play in plays if getattr(play, "env_id", "") == fickle}
    trained = {sample.sample_id for sample in ready.samples if sample.role == AGENT}
    assert ready.evicted == 1
    assert trained
    assert not trained & void
    generation = next(record for record in decided if isinstance(record, GenerationClosed))
    assert {design.env_id: (design.reward, bool(design.evicted)) for design in generation.designs}[fickle] == (0.0, True)

    store_all(broker_settings, client, run_id)
    facts = queries.read_run(client, run_id)
    assert (facts.audits.requested, facts.audits.finished, facts.audits.differing, facts.audits.lost) == (12, 12, 6, 0)
    (told,) = facts.evictions
    assert (told.env_id, told.generation, told.step, told.voided) == (fickle, 0, 0, 2 * SEEDS)
    sink = io.StringIO()
    terminal.show(facts, Console(file=sink, width=300))
    written = page.write_page(facts, b"")
    for text in (sink.getvalue(), written):
        assert "12 of 12 audited plays were repeated in a fresh jail: 6 differed" in text
        assert "Environments evicted: 1; their 6 plays from then on were not trained" in text
        assert fickle in text
    assert "[bold red]" in sink.getvalue()
    assert "<script>" not in written
