"""What each record becomes in the store: the columns of infra/migrations, by name. Pure; called by the memory sink.

Everything a person or the design stage may ask for later goes into a row, token ids and log-probabilities packed as the record
holds them (4 bytes a value: as Python numbers a batch of long episodes would take gigabytes).
"""

from __future__ import annotations

import base64
import datetime
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from schemas.common import Record, Span
from schemas.design import DesignRequested, DesignSlot, EnvProposed, EnvRejected, EnvValidated, SlotsClosed
from schemas.rollout import HINTED, PLAIN, AuditFinished, AuditRequested, RolloutFinished, RolloutRequested
from schemas.run import DeadLetter, RunEnding, RunFinished, RunStarted
from schemas.score import EnvScored, GenerationClosed
from schemas.topics import Topic
from schemas.train import AGENT, DESIGNER, BatchReady, EvalFinished, PolicyPublished, RoleStats, StepFinished

Row = dict[str, Any]
TableRow = tuple[str, Row]
R = TypeVar("R", bound=Record)
LAST_VERSION = 2**64 - 1
TOKEN_BYTES = 4

# A topic's table; where a record fills two, the one that says that it is whole comes last, and its rows are inserted last.
TABLES: dict[Topic, tuple[str, ...]] = {
    Topic.RUN_STARTED: ("runs",),
    Topic.RUN_ENDING: ("runs",),
    Topic.RUN_FINISHED: ("runs",),
    Topic.DESIGN_REQUESTED: ("prompts", "requests"),
    Topic.ENV_PROPOSED: ("designs",),
    Topic.ENV_VALIDATED: ("verdicts",),
    Topic.ENV_REJECTED: ("verdicts",),
    Topic.SLOTS_CLOSED: ("slots_closed",),
    Topic.ROLLOUT_REQUESTED: ("requests",),
    Topic.ROLLOUT_FINISHED: ("episodes",),
    Topic.AUDIT_REQUESTED: ("audits",),
    Topic.AUDIT_FINISHED: ("audits",),
    Topic.ENV_SCORED: ("scores",),
    Topic.GENERATION_CLOSED: ("rewards", "standings", "generations"),
    Topic.BATCH_READY: ("batches",),
    Topic.STEP_FINISHED: ("steps",),
    Topic.POLICY_PUBLISHED: ("policies",),
    Topic.EVAL_FINISHED: ("evaluations",),
    Topic.DEAD_LETTER: ("dead_letters",),
}


def rows_of(topic: Topic, record: Record, partition: int, offset: int) -> list[TableRow]:
    """(table, row) for every row that the record at this place in the log becomes."""
    common: Row = {
        "run_id": record.run_id,
        "event_id": record.event_id,
        "causation_id": record.causation_id,
        "created_at": datetime.datetime.fromtimestamp(record.created_at, datetime.UTC),
        "_topic": topic.wire,
        "_partition": partition,
        "_offset": offset,
        "_version": LAST_VERSION - offset,
    }
    return [(table, {**common, **row}) for table, row in _MAPPERS[type(record)](record)]


@dataclass(frozen=True)
class Block:
    """Rows of one table that are inserted at once. `token` tells the store that it has seen the block."""

    table: str
    columns: list[str]
    values: list[list[Any]]
    token: str


def blocks_of(run_id: str, topic: Topic, partition: int, first: int, last: int, rows: Sequence[TableRow]) -> list[Block]:
    """The rows of one partition's offsets [first, last] as blocks, in the order in which they are to be inserted."""
    blocks = []
    for table in TABLES[topic]:
        own = [row for name, row in rows if name == table]
        if own:
            columns = list(own[0])
            token = f"{run_id}:{topic.wire}:{partition}:{first}-{last}:{table}"
            blocks.append(Block(table, columns, [[row[column] for column in columns] for row in own], token))
    return blocks


def _named(record: Record, *left_out: str) -> Row:
    """The record's own fields, for those whose columns bear the same names."""
    dropped = {*Record.__struct_fields__, *left_out}
    return {name: getattr(record, name) for name in record.__struct_fields__ if name not in dropped}


def _run_event(record: RunStarted | RunEnding | RunFinished) -> list[TableRow]:
    event = {RunStarted: "started", RunEnding: "ending", RunFinished: "finished"}[type(record)]
    row: Row = {
        "event": event,
        "recipe_name": "",
        "recipe_json": "",
        "seed": 0,
        "steps": 0,
        "dialect": "",
        "code_digest": "",
        "corpus_digest": "",
        "tokenizer_digest": "",
        "policy_place": "",
        "last_generation": -1,
        "drain_steps": 0,
        "final_version": -1,
        "final_digest": "",
        "agent_samples": 0,
        "designer_samples": 0,
        "cause": "",
    }
    own = _named(record)
    return [("runs", {**row, **{name: value for name, value in own.items() if name in row}})]


def _design_requested(record: DesignRequested) -> list[TableRow]:
    env_ids = [slot.env_id for slot in record.slots]
    prompts = [("prompts", _prompt(record, slot)) for slot in record.slots]
    return [*prompts, _request("design", record, -1, record.design_attempt, env_ids, len(record.slots))]


def _prompt(record: DesignRequested, slot: DesignSlot) -> Row:
    """What one design was asked with."""
    return {
        "generation": record.generation,
        "env_id": slot.env_id,
        "slot": slot.slot,
        "design_attempt": slot.design_attempt,
        "unit_id": record.unit_id,
        "skill": slot.skill,
        "document_id": slot.document.document_id,
        "document_title": slot.document.title,
        "document_text": slot.document.text,
        "document_skill": slot.document.skill,
        "document_tag": slot.document.tag,
        "memory_env_ids": [line.env_id for line in slot.memory],
        "memory_kinds": [line.kind for line in slot.memory],
        "sampling_seed": slot.sampling_seed,
        "reaction": record.reaction.told if record.reaction else "",
    }


def _rollout_requested(record: RolloutRequested) -> list[TableRow]:
    return [_request("rollout", record, record.step, 0, [one.env_id for one in record.environments], len(record.plays))]


def _request(
    stage: str, record: DesignRequested | RolloutRequested, step: int, attempt: int, env_ids: list[str], items: int
) -> TableRow:
    return "requests", {
        "stage": stage,
        "unit_id": record.unit_id,
        "generation": record.generation,
        "step": step,
        "design_attempt": attempt,
        "policy_version": record.policy_version,
        "items": items,
        "env_ids": env_ids,
    }


def _proposed(record: EnvProposed) -> list[TableRow]:
    row = _named(record, "group", "spans", "external")
    row["design_group"] = record.group
    row["tries"] = record.tries
    for name in ("prompt", "completion"):
        row[f"{name}_token_ids"] = _unpacked("I", row[f"{name}_tokens"])
        row[f"{name}_tokens"] = len(row[f"{name}_token_ids"])
    row["logprobs"] = _unpacked("f", record.logprobs)
    row["policy_version"], row["policy_digest"] = _sampler(record.spans)
    return [("designs", row)]


def _verdict(record: EnvValidated | EnvRejected) -> list[TableRow]:
    row: Row = {
        "valid": isinstance(record, EnvValidated),
        "rule": "",
        "evidence": "",
        "full_source": record.source,
        "source_digest": "",
        "signature": [],
        "witness_min_return": 0.0,
        "witness_mean_return": 0.0,
        "reward_min": 0.0,
        **_named(record, "group", "proposal", "proof", "versions"),
        "design_group": record.group,
        "tries": record.tries,
        "proof_json": msgspec.json.encode(record.proof).decode(),
        "proposal_topic": record.proposal.topic,
        "proposal_partition": record.proposal.partition,
        "proposal_offset": record.proposal.offset,
    }
    return [("verdicts", row)]


def _slots_closed(record: SlotsClosed) -> list[TableRow]:
    row = {
        "generation": record.generation,
        "policy_version": record.policy_version,
        "members": [member.env_id for member in record.members],
        "duplicates": [one.env_id for one in record.duplicates],
        "missing": [one.slot for one in record.missing],
        "missing_reasons": [one.reason for one in record.missing],
        "rejected": [one.env_id for one in record.rejected],
        "proposed": record.proposed,
        "rejected_by_rule": record.rejected_by_rule,
    }
    return [("slots_closed", row)]


def _episode(record: RolloutFinished) -> list[TableRow]:
    row = _named(record, "tokens", "spans", "turns", "index", "plays_expected", "witness_min_return", "reward_min")
    row["asked_before"] = row.pop("repeat")
    row["tries"] = record.tries
    row["play_index"] = record.index
    row["observations"] = [turn.observation for turn in record.turns]
    row["actions"] = [turn.action for turn in record.turns]
    row["rewards"] = [turn.reward for turn in record.turns]
    row["faults"] = [turn.fault for turn in record.turns]
    row["cuts"] = [turn.cut for turn in record.turns]
    row["token_ids"] = _unpacked("I", record.tokens)
    row["tokens"] = len(row["token_ids"])
    row["logprobs"] = _unpacked("f", record.logprobs)
    row["sampled_from"] = [span.start for span in record.spans]
    row["sampled_to"] = [span.end for span in record.spans]
    row["sampled_by"] = [span.policy_version for span in record.spans]
    row["sampled_tokens"] = sum(span.end - span.start for span in record.spans)
    row["policy_version"], row["policy_digest"] = _sampler(record.spans)
    return [("episodes", row)]


def _audit_requested(record: AuditRequested) -> list[TableRow]:
    return [
        (
            "audits",
            {**_named(record, "source", "play", "repeat"), "state": "requested", "equal": False, "difference": "", "lost": ""},
        )
    ]


def _audit_finished(record: AuditFinished) -> list[TableRow]:
    return [("audits", {**_named(record, "repeat"), "state": "finished"})]


def _scored(record: EnvScored) -> list[TableRow]:
    row = _named(record, "arms", "repeat")
    row["asked_before"] = record.repeat
    arms = {arm.arm.removeprefix("probe-"): arm for arm in record.arms}  # a score holds its own plays or probe plays
    for name in (PLAIN, HINTED):
        arm = arms.get(name)
        row[f"{name}_plays"] = len(arm.plays) if arm else 0
        row[f"{name}_mean"] = arm.mean if arm else 0.0
        row[f"{name}_win_rate"] = arm.win_rate if arm else 0.0
    return [("scores", row)]


STANDING = ("skill", "env_id", "slot", "w", "win_rate", "hint_win_rate", "regret", "regret_se", "pairs", "reward", "evicted")


def _generation(record: GenerationClosed) -> list[TableRow]:
    rows: list[TableRow] = []
    for design in record.designs:
        left_out = ("proposal", "group", "pairs", "versions")
        row = {name: getattr(design, name) for name in design.__struct_fields__ if name not in left_out}
        rows.append(("rewards", {**row, "design_group": design.group, "generation": record.generation}))
    for design in record.designs:
        if design.valid:
            row = {name: getattr(design, name) for name in STANDING}
            rows.append(("standings", {**row, "generation": record.generation, "measured": record.generation}))
    for probe in record.probes:
        if probe.plays or probe.evicted:
            row = {name: getattr(probe, name) for name in STANDING}
            rows.append(("standings", {**row, "generation": probe.generation, "measured": record.generation}))
    members = sum(design.valid for design in record.designs)
    return [*rows, ("generations", {**_named(record, "designs", "probes"), "members": members})]


def _batch(record: BatchReady) -> list[TableRow]:
    row = _named(record, "samples")
    row["agent_samples"] = sum(sample.role == AGENT for sample in record.samples)
    row["designer_samples"] = sum(sample.role == DESIGNER for sample in record.samples)
    row["sample_ids"] = [sample.sample_id for sample in record.samples]
    row["roles"] = [sample.role for sample in record.samples]
    row["advantages"] = [sample.advantage for sample in record.samples]
    row["policy_versions"] = [sample.policy_version for sample in record.samples]
    row["newest_versions"] = [sample.versions.newest for sample in record.samples]
    row["lags"] = [sample.lag for sample in record.samples]
    return [("batches", row)]


def _step(record: StepFinished) -> list[TableRow]:
    row = _named(record, "roles")
    for role in (AGENT, DESIGNER):
        stats = record.roles.get(role, RoleStats())
        for name in ("samples", "tokens", "loss", "ess", "lag_mean", "lag_max", "logratio_max", "entropy"):
            row[f"{role}_{name}"] = getattr(stats, name)
    return [("steps", row)]


def _policy(record: PolicyPublished) -> list[TableRow]:
    return [("policies", {**_named(record, "version", "canary"), "policy_version": record.version})]


def _evaluation(record: EvalFinished) -> list[TableRow]:
    returns = _unpacked("f", record.returns)
    mean = sum(returns) / max(1, len(returns))
    return [
        ("evaluations", {**_named(record, "returns"), "won": sum(record.won), "formed": sum(record.formed), "mean_return": mean})
    ]


def _dead_letter(record: DeadLetter) -> list[TableRow]:
    row = {
        "origin_topic": record.origin_topic,
        "origin_partition": record.partition,
        "origin_offset": record.offset,
        "reason": record.reason,
        "data_base64": base64.b64encode(record.data).decode(),
    }
    return [("dead_letters", row)]


def _unpacked(code: str, data: bytes) -> array[Any]:
    """The little-endian 4-byte values of a record's field: "I" (token ids) or "f" (log-probabilities)."""
    values: array[Any] = array(code)
    values.frombytes(data[: len(data) // TOKEN_BYTES * TOKEN_BYTES])
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _sampler(spans: list[Span]) -> tuple[int, str]:
    """Version and digest of the policy that sampled first; (-1, "") where nothing was sampled."""
    return (spans[0].policy_version, spans[0].policy_digest) if spans else (-1, "")


_MAPPERS: dict[type[Record], Callable[[Any], list[TableRow]]] = {
    RunStarted: _run_event,
    RunEnding: _run_event,
    RunFinished: _run_event,
    DesignRequested: _design_requested,
    EnvProposed: _proposed,
    EnvValidated: _verdict,
    EnvRejected: _verdict,
    SlotsClosed: _slots_closed,
    RolloutRequested: _rollout_requested,
    RolloutFinished: _episode,
    AuditRequested: _audit_requested,
    AuditFinished: _audit_finished,
    EnvScored: _scored,
    GenerationClosed: _generation,
    BatchReady: _batch,
    StepFinished: _step,
    PolicyPublished: _policy,
    EvalFinished: _evaluation,
    DeadLetter: _dead_letter,
}
