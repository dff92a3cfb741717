"""The validate worker: designs before the gate, and plays repeated for audit. `spade work validate`. Imports no torch.

In: spade-env-proposed and spade-audit-requested, in the group spade-work-validate-RUN. Out: one spade-env-validated or
spade-env-rejected a design, with what each rule saw; one spade-audit-finished an audit. A judgement that the machine interrupted
is made again; when tries end, the design is rejected with rule "lost", which is never scored. A design equal to one that was
judged in the run, by whatever worker and before whatever restart, takes that verdict (workers.verdicts) and costs nothing.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from infra.actions import action_form
from infra.kafka import ControlReader, RecordFetcher
from infra.runs import await_run
from infra.telemetry import bind_run, count, get_logger, observe
from schemas import ids
from schemas.common import Record, Reference, version_span
from schemas.design import EnvProposed, EnvRejected, EnvValidated, RuleProof
from schemas.process import ProcessContext
from schemas.rollout import AuditFinished, AuditRequested
from schemas.topics import Topic
from workers.audit import AuditInterruptedError, repeat_play
from workers.consumer import consume
from workers.gate import ALLOWED_IMPORTS, JAILS_OF_A_JUDGEMENT, GateInterrupted, Verdict, judge
from workers.sandbox.base import Sandbox
from workers.stage import Outputs, Stage, Work
from workers.verdicts import LOST, PARSE, READ, VerdictBook

DEADLINE_S = 600.0
log = get_logger("workers.validate")


def run(context: ProcessContext) -> None:
    """Judges and audits until the run has finished or a signal came. Blocks; raises SpadeError."""
    from workers.sandbox import open_sandbox

    started = await_run(context)
    bind_run(started.run_id)
    recipe = started.recipe
    stage = Stage("validate", (Topic.ENV_PROPOSED, Topic.AUDIT_REQUESTED), DEADLINE_S, prefetch=32, tries=recipe.rollout.tries)
    box = recipe.sandbox
    sandbox = open_sandbox(box.mode, required_level=box.level, ready=JAILS_OF_A_JUDGEMENT, packages=box.packages)
    fresh = open_sandbox("fresh", required_level=box.level, packages=box.packages)
    form = action_form(recipe.model.dialect)
    decide = partial(judge, allowed_imports=ALLOWED_IMPORTS.union(box.packages), form=form)
    fetcher = RecordFetcher(context.broker)
    reader = ControlReader(context.broker, READ, started.run_id)

    def make_work(stop: threading.Event) -> Work:
        book = VerdictBook(reader)
        return ValidateWork(sandbox, fresh, fetcher, recipe.rollout.max_turns, recipe.rollout.tries, decide, book)

    try:
        consume(context, started, stage, make_work)
    finally:
        fetcher.close()
        reader.close()
        sandbox.close()
        fresh.close()


class ValidateWork:
    """See consumer.Work. `fresh` gives every session a jail of its own: audits run there."""

    def __init__(
        self,
        sandbox: Sandbox,
        fresh: Sandbox,
        fetcher: RecordFetcher,
        max_turns: int,
        tries: int,
        decide: Callable[..., Verdict] = judge,
        verdicts: VerdictBook | None = None,
    ) -> None:
        self._sandbox, self._fresh, self._fetcher = sandbox, fresh, fetcher
        self._max_turns, self._tries = max_turns, tries
        self._decide = decide
        self._verdicts = verdicts or VerdictBook()

    def run(self, record: Record, at: Reference) -> Outputs:
        """The verdict on a proposal, or the result of an audit."""
        if isinstance(record, AuditRequested):
            return [(Topic.AUDIT_FINISHED, self._audit(record))]
        assert isinstance(record, EnvProposed)  # the topics hold no other
        if record.lost:
            return _rejection(record, at, LOST, record.lost)
        if record.parse_error:
            return _rejection(record, at, PARSE, record.parse_error)
        known = self._verdicts.find(record.source, record.hint)
        if known is not None:
            log.info("an equal design was judged before", env_id=record.env_id, verdict_from=known.event_id)
            own = known.event_id in (ids.event_id(kind, record.env_id) for kind in ("validated", "rejected"))  # delivered again
            free = dataclasses.replace(known.verdict, cpu_s=0.0, wall_s=0.0)
            return _told(record, at, free, "" if own else known.event_id)
        verdict, tries, problem = self._judge(record)
        if verdict is None:
            return _failed(_rejection(record, at, LOST, problem), tries)
        observe("spade_gate_seconds", verdict.wall_s)
        outputs = _failed(_told(record, at, verdict), tries)
        self._verdicts.note(record.source, record.hint, verdict, outputs[0][1].event_id)
        return outputs

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        """A lost design, or a lost audit."""
        if isinstance(record, AuditRequested):
            return [(Topic.AUDIT_FINISHED, _audited(record, lost=reason))]
        assert isinstance(record, EnvProposed)  # the topics hold no other
        return _rejection(record, at, LOST, reason)

    def _judge(self, record: EnvProposed) -> tuple[Verdict | None, int, str]:
        """The verdict or None, how often the infrastructure failed, and its last failure."""
        problem = ""
        for failed in range(self._tries):
            try:
                return self._decide(self._sandbox, record.source, record.hint, max_turns=self._max_turns), failed, ""
            except GateInterrupted as interruption:
                problem = f"{interruption} in {self._tries} tries"
                log.warning("the gate was interrupted", env_id=record.env_id, cause=str(interruption))
        return None, self._tries, problem

    def _audit(self, request: AuditRequested) -> AuditFinished:
        play = self._fetcher.fetch([request.play])[request.play.id]
        problem = ""
        for _ in range(self._tries):
            try:
                return _audited(request, difference=repeat_play(self._fresh, request.source, play, self._max_turns))
            except AuditInterruptedError as interruption:
                problem = f"{interruption} in {self._tries} tries"
        return _audited(request, lost=problem)


def _told(record: EnvProposed, at: Reference, verdict: Verdict, verdict_from: str = "") -> Outputs:
    """The record of a verdict; `verdict_from`: the event that gave it to an equal design."""
    if verdict.admitted:
        return _admission(record, at, verdict, verdict_from)
    return _rejection(record, at, verdict.rule, verdict.evidence, verdict, verdict_from)


def _failed(outputs: Outputs, tries: int) -> Outputs:
    """The outputs, with how often the infrastructure failed before them."""
    return [(topic, msgspec.structs.replace(record, tries=tries)) for topic, record in outputs]


def _admission(record: EnvProposed, at: Reference, verdict: Verdict, verdict_from: str) -> Outputs:
    count("spade_designs_total", verdict="valid")
    admitted = EnvValidated(
        **_common(record, at, "validated", verdict),
        source=verdict.play_source,
        full_source=record.source,
        source_digest=verdict.source_digest,
        signature=list(verdict.signature),
        witness_min_return=verdict.witness_min_return,
        witness_mean_return=verdict.witness_mean_return,
        reward_min=verdict.reward_min,
        verdict_from=verdict_from,
    )
    return [(Topic.ENV_VALIDATED, admitted)]


def _rejection(
    record: EnvProposed, at: Reference, rule: str, evidence: str, verdict: Verdict | None = None, verdict_from: str = ""
) -> Outputs:
    count("spade_designs_total", verdict=rule)
    common = _common(record, at, "rejected", verdict)
    rejected = EnvRejected(**common, source=record.source, rule=rule, evidence=evidence, verdict_from=verdict_from)
    return [(Topic.ENV_REJECTED, rejected)]


def _common(record: EnvProposed, at: Reference, kind: str, verdict: Verdict | None) -> dict[str, Any]:
    proof = [
        RuleProof(rule=one.rule, passed=one.passed, evidence=one.evidence, numbers=dict(one.numbers))
        for one in (verdict.proof if verdict else ())
    ]
    return {
        "run_id": record.run_id,
        "event_id": ids.event_id(kind, record.env_id),
        "causation_id": record.event_id,
        "created_at": time.time(),
        "env_id": record.env_id,
        "generation": record.generation,
        "slot": record.slot,
        "design_attempt": record.design_attempt,
        "skill": record.skill,
        "document_id": record.document_id,
        "group": record.group,
        "hint": record.hint,
        "proposal": at,
        "proof": proof,
        "gate_cpu_s": verdict.cpu_s if verdict else 0.0,
        "gate_wall_s": verdict.wall_s if verdict else 0.0,
        "versions": version_span(record.spans),
    }


def _audited(request: AuditRequested, difference: str = "", lost: str = "") -> AuditFinished:
    return AuditFinished(
        run_id=request.run_id,
        event_id=ids.event_id("audited", request.play_id),
        causation_id=request.event_id,
        created_at=time.time(),
        play_id=request.play_id,
        env_id=request.env_id,
        step=request.step,
        generation=request.generation,
        equal=not (difference or lost),
        difference=difference,
        lost=lost,
        repeat=request.repeat,
    )
