"""The validate worker's decisions over a scripted gate, and audits over a sandbox without jail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from schemas.common import Record, Reference
from schemas.design import EnvProposed, EnvRejected, EnvValidated
from schemas.errors import StageTimeoutError
from schemas.rollout import AuditFinished, AuditRequested, RolloutFinished, Turn
from schemas.topics import BY_RECORD, Topic
from tests.fakes.sandbox import FakeSandbox
from workers.gate import GateInterrupted, RuleProof, Verdict
from workers.sandbox.base import EndReason
from workers.validate import ValidateWork
from workers.verdicts import VerdictBook

AT = Reference(topic=Topic.ENV_PROPOSED.wire, partition=3, offset=17, id="e1")
TOGGLE = """
class ToggleEnv:
    def __init__(self, max_turns=25): self.on = False
    def reset(self, seed=None): self.on = bool(seed % 2); return f"on {self.on}", {}
    def step(self, action):
        if action == "boom": return str(1 // 0), 0.0, False, False, {}
        self.on = not self.on
        return f"on {self.on}", 0.5, action == "end", False, {}
"""


class ScriptedGate:
    """Verdicts, or interruptions, one a call."""

    def __init__(self, *answers: Verdict | str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, int]] = []

    def __call__(self, sandbox: Any, source: str, hint: str, *, max_turns: int) -> Verdict:
        self.asked.append((source, hint, max_turns))
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise GateInterrupted(answer)
        return answer


class HeldRecords:
    """What a fetcher would read from the log."""

    def __init__(self, *records: Record) -> None:
        self.records = {record.event_id: record for record in records}

    def fetch(self, references: list[Reference]) -> dict[str, Record]:
        return {reference.id: self.records[reference.id] for reference in references}


def verdict(rule: str = "") -> Verdict:
    return Verdict(
        admitted=not rule,
        rule=rule,
        evidence="6 of 8" if rule else "",
        proof=(RuleProof("replay", True, "", {"seeds": 8.0}),),
        play_source="play text",
        source_digest="sd",
        play_digest="pd",
        signature=(1, 2, 3),
        witness_min_return=0.5,
        witness_mean_return=0.75,
        reward_min=-0.25,
        cpu_s=0.1,
        wall_s=0.2,
    )


def proposal(**changes: Any) -> EnvProposed:
    given: dict[str, Any] = {"source": "full text", "hint": "look"} | changes
    env_id = given.pop("env_id", "e1")
    return EnvProposed(
        run_id="r",
        event_id=env_id,
        env_id=env_id,
        unit_id="u",
        generation=3,
        slot=5,
        design_attempt=1,
        skill="Optimization",
        document_id="d",
        group="g",
        **given,
    )


@pytest.fixture
def make_work() -> Callable[..., ValidateWork]:
    def build(
        gate: ScriptedGate, *records: Record, sandbox: FakeSandbox | None = None, verdicts: VerdictBook | None = None
    ) -> ValidateWork:
        jails, held = sandbox or FakeSandbox(), HeldRecords(*records)
        return ValidateWork(jails, jails, held, max_turns=9, tries=3, decide=gate, verdicts=verdicts)  # type: ignore[arg-type]

    return build


def only(outputs: Any) -> Any:
    ((topic, record),) = outputs
    assert isinstance(record, topic.record)
    return record


def test_an_admitted_design_is_validated_with_its_numbers_and_a_reference_to_the_proposal(
    make_work: Callable[..., ValidateWork],
) -> None:
    gate = ScriptedGate(verdict())
    record = only(make_work(gate).run(proposal(), AT))
    assert isinstance(record, EnvValidated)
    assert gate.asked == [("full text", "look", 9)]
    assert (record.source, record.full_source, record.hint, record.proposal) == ("play text", "full text", "look", AT)
    assert (record.witness_min_return, record.witness_mean_return, record.reward_min) == (0.5, 0.75, -0.25)
    assert (record.signature, record.proof[0].rule, record.proof[0].numbers) == ([1, 2, 3], "replay", {"seeds": 8.0})
    assert (record.env_id, record.generation, record.slot, record.design_attempt, record.causation_id) == ("e1", 3, 5, 1, "e1")


@pytest.mark.parametrize(
    ("changes", "rule", "evidence"),
    [
        ({"parse_error": "0 hint marks"}, "parse", "0 hint marks"),
        ({"lost": "its worker died"}, "lost", "its worker died"),
        ({}, "witness", "6 of 8"),
    ],
)
def test_a_refused_design_names_its_rule_and_what_was_seen(
    make_work: Callable[..., ValidateWork], changes: dict[str, str], rule: str, evidence: str
) -> None:
    record = only(make_work(ScriptedGate(verdict("witness"))).run(proposal(**changes), AT))
    assert isinstance(record, EnvRejected)
    assert (record.rule, record.evidence, record.proposal) == (rule, evidence, AT)


def test_an_interrupted_judgement_is_made_again_and_lost_only_after_all_tries(make_work: Callable[..., ValidateWork]) -> None:
    gate = ScriptedGate("timeout", "died", verdict())
    admitted = only(make_work(gate).run(proposal(), AT))
    assert (type(admitted), admitted.tries) == (EnvValidated, 2)
    gate = ScriptedGate("timeout", "timeout", "died", verdict())
    work = make_work(gate)
    record = only(work.run(proposal(), AT))
    assert (record.rule, record.evidence, record.tries) == ("lost", "died in 3 tries", 3)
    assert isinstance(only(work.run(proposal(env_id="e2"), AT)), EnvValidated)  # an interruption is no verdict to remember


def test_an_equal_design_takes_the_verdict_that_there_is_and_another_hint_is_another_design(
    make_work: Callable[..., ValidateWork],
) -> None:
    gate = ScriptedGate(verdict("seed"), verdict())
    work = make_work(gate)
    records = [only(work.run(proposal(env_id=name, hint=hint), AT)) for name, hint in (("e1", "a"), ("e2", "a"), ("e3", "b"))]
    assert [type(record) for record in records] == [EnvRejected, EnvRejected, EnvValidated]
    assert len({record.event_id for record in records}) == 3
    assert len(gate.asked) == 2
    assert [record.verdict_from for record in records] == ["", records[0].event_id, ""]
    assert [record.gate_cpu_s for record in records] == [0.1, 0.0, 0.1]
    assert (records[1].rule, records[1].evidence, records[1].proof) == (records[0].rule, records[0].evidence, records[0].proof)


class HeldLog:
    """A run's verdict records, read once each, as a ControlReader would."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def catch_up(self, deadline_s: float = 60.0) -> list[Any]:
        entries = [(BY_RECORD[type(record)], 0, 0, record) for record in self.records]
        self.records.clear()
        return entries


def test_a_worker_takes_verdicts_of_other_workers_from_the_log_but_none_of_lost_or_unreadable_designs(
    make_work: Callable[..., ValidateWork],
) -> None:
    first = make_work(ScriptedGate(verdict(), verdict("seed"), "died", "died", "died"))
    admitted = only(first.run(proposal(env_id="e1", hint="a"), AT))
    refused = only(first.run(proposal(env_id="e2", hint="b"), AT))
    lost = only(first.run(proposal(env_id="e3", hint="c"), AT))
    unread = only(first.run(proposal(env_id="e4", hint="d", parse_error="no hint"), AT))
    log, gate = HeldLog(), ScriptedGate(verdict(), verdict())
    second = make_work(gate, verdicts=VerdictBook(log))
    log.records += [admitted, refused, lost, unread]
    taken = [only(second.run(proposal(env_id=f"f{hint}", hint=hint), AT)) for hint in "abcd"]
    assert [record.verdict_from for record in taken] == [admitted.event_id, refused.event_id, "", ""]
    assert len(gate.asked) == 2
    same = ("source", "full_source", "hint", "source_digest", "signature", "proof", "witness_min_return", "reward_min")
    assert all(getattr(taken[0], name) == getattr(admitted, name) for name in same)
    assert (taken[1].rule, taken[1].evidence, taken[1].gate_cpu_s, taken[1].causation_id) == ("seed", "6 of 8", 0.0, "fb")
    log.records += [taken[0]]
    third = make_work(ScriptedGate(), verdicts=VerdictBook(log))
    assert only(third.run(proposal(env_id="g1", hint="a"), AT)).verdict_from == admitted.event_id


class SlowLog:
    """A log that is too long to be read in time."""

    def catch_up(self, deadline_s: float = 60.0) -> list[Any]:
        raise StageTimeoutError("the run topics were not read to their ends", "Check the broker")


def test_a_log_that_cannot_be_read_in_time_costs_a_judgement_and_not_the_worker(make_work: Callable[..., ValidateWork]) -> None:
    gate = ScriptedGate(verdict())
    record = only(make_work(gate, verdicts=VerdictBook(SlowLog())).run(proposal(), AT))
    assert (type(record), len(gate.asked)) == (EnvValidated, 1)


def test_a_design_delivered_again_takes_its_own_verdict_and_names_no_other(make_work: Callable[..., ValidateWork]) -> None:
    log = HeldLog()
    log.records = [only(make_work(ScriptedGate(verdict())).run(proposal(), AT))]
    again = only(make_work(ScriptedGate(), verdicts=VerdictBook(log)).run(proposal(), AT))
    assert (type(again), again.verdict_from, again.gate_cpu_s) == (EnvValidated, "", 0.0)


def test_remembered_verdicts_are_bounded_and_the_longest_unused_goes() -> None:
    book = VerdictBook(remembered=2)
    book.note("a", "", verdict(), "1")
    book.note("b", "", verdict(), "2")
    assert book.find("a", "") is not None
    book.note("c", "", verdict(), "3")
    assert [book.find(name, "") is not None for name in "abc"] == [True, False, True]


def played(**changes: Any) -> RolloutFinished:
    turns = [
        Turn(observation="on True", action="a", reward=0.5, action_start=0, action_end=1),
        Turn(observation="on False", action="end", reward=0.5, action_start=1, action_end=2),
    ]
    given: dict[str, Any] = {
        "turns": turns,
        "final_observation": "on True",
        "terminated": True,
        "end_reason": "terminated",
    } | changes
    return RolloutFinished(
        run_id="r",
        event_id="p",
        play_id="p",
        unit_id="u",
        env_id="e1",
        step=4,
        generation=3,
        arm="plain",
        index=0,
        env_seed=7,
        plays_expected=1,
        **given,
    )


def audit(work: ValidateWork) -> AuditFinished:
    play = Reference(topic=Topic.ROLLOUT_FINISHED.wire, partition=0, offset=0, id="p")
    request = AuditRequested(run_id="r", event_id="a", play_id="p", env_id="e1", step=4, generation=3, source=TOGGLE, play=play)
    record = only(work.run(request, AT))
    assert isinstance(record, AuditFinished)
    return record


def test_an_audit_repeats_the_actions_and_finds_an_honest_play_equal(make_work: Callable[..., ValidateWork]) -> None:
    sandbox = FakeSandbox()
    result = audit(make_work(ScriptedGate(), played(), sandbox=sandbox))
    assert (result.equal, result.difference, result.lost) == (True, "", "")
    assert sandbox.calls["step"] == 2
    boom = [Turn(observation="on True", action="boom", reward=0.0, action_start=0, action_end=1)]
    ended = played(turns=boom, final_observation="", terminated=False, end_reason="env_error")
    assert audit(make_work(ScriptedGate(), ended)).equal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"turns": [Turn(observation="on False", action="end", reward=0.5, action_start=0, action_end=1)]}, "observation"),
        (
            {"turns": [Turn(observation="on True", action="end", reward=0.75, action_start=0, action_end=1)]},
            "reward 0.5 where 0.75",
        ),
        (
            {"turns": [Turn(observation="on True", action="a", reward=0.5, action_start=0, action_end=1)]},
            "went on where it terminated",
        ),
        ({"final_observation": "on"}, "last observation"),
        ({"turns": [], "end_reason": "oom"}, "before its first turn"),
        ({"turns": [Turn(observation="on True", action="boom", reward=0.0, action_start=0, action_end=1)]}, "env_error"),
    ],
)
def test_an_audit_tells_the_first_difference(make_work: Callable[..., ValidateWork], changes: dict[str, Any], said: str) -> None:
    result = audit(make_work(ScriptedGate(), played(**changes)))
    assert not result.equal
    assert said in result.difference
    assert not result.lost


def test_an_audit_that_the_machine_ends_in_every_try_is_lost_and_no_mismatch(make_work: Callable[..., ValidateWork]) -> None:
    always = FakeSandbox({("open", number): EndReason.DIED for number in range(1, 4)})
    result = audit(make_work(ScriptedGate(), played(), sandbox=always))
    assert (result.equal, result.difference) == (False, "")
    assert result.lost.endswith("in 3 tries")
    once = FakeSandbox({("step", 2): EndReason.TIMEOUT})
    assert audit(make_work(ScriptedGate(), played(), sandbox=once)).equal


def test_the_worker_imports_no_torch() -> None:
    command = "import sys, workers.validate; sys.exit(sorted({'torch', 'transformers'} & set(sys.modules)) != [])"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
