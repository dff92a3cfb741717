"""The one table of topics: name, record, key, writer, readers.

Work topics spread units or environments over a pool; run topics are keyed by run: one run, one partition, total order.
Source: the topic table of docs/ARCHITECTURE.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from schemas.common import Record
from schemas.design import DesignRequested, EnvProposed, EnvRejected, EnvValidated, SlotsClosed
from schemas.rollout import AuditFinished, AuditRequested, RolloutFinished, RolloutRequested
from schemas.run import DeadLetter, RunEnding, RunFinished, RunStarted
from schemas.score import EnvScored, GenerationClosed
from schemas.train import BatchReady, EvalFinished, PolicyPublished, StepFinished

PARTITIONS = 12
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
DEAD_LETTER_BYTES = 1024 * 1024  # what a dead letter keeps of bad bytes, whoever writes it: an oversize record fits no letter
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class TopicSpec:
    """One row of the topic table."""

    name: str
    record: type[Record]
    key: str  # unit | env_id | run_id | origin
    writer: str
    readers: tuple[str, ...]
    retention_ms: int = -1  # topics of an unfinished run keep everything


class Topic(Enum):
    """Every topic of the system."""

    RUN_STARTED = TopicSpec("spade-run-started", RunStarted, "run_id", "spade run", ("everyone",))
    RUN_ENDING = TopicSpec("spade-run-ending", RunEnding, "run_id", "streams/design", ("everyone",))
    RUN_FINISHED = TopicSpec("spade-run-finished", RunFinished, "run_id", "trainer", ("everyone",))
    DESIGN_REQUESTED = TopicSpec("spade-design-requested", DesignRequested, "unit", "streams/design", ("workers/design",))
    ENV_PROPOSED = TopicSpec("spade-env-proposed", EnvProposed, "env_id", "workers/design", ("workers/validate", "trainer"))
    ENV_VALIDATED = TopicSpec("spade-env-validated", EnvValidated, "run_id", "workers/validate", ("streams/design",))
    ENV_REJECTED = TopicSpec("spade-env-rejected", EnvRejected, "run_id", "workers/validate", ("streams/design",))
    SLOTS_CLOSED = TopicSpec("spade-slots-closed", SlotsClosed, "run_id", "streams/design", ("streams/rollout", "streams/batch"))
    ROLLOUT_REQUESTED = TopicSpec("spade-rollout-requested", RolloutRequested, "unit", "streams/rollout", ("workers/rollout",))
    ROLLOUT_FINISHED = TopicSpec(
        "spade-rollout-finished", RolloutFinished, "env_id", "workers/rollout", ("streams/score", "trainer")
    )
    AUDIT_REQUESTED = TopicSpec("spade-audit-requested", AuditRequested, "env_id", "streams/score", ("workers/validate",))
    AUDIT_FINISHED = TopicSpec("spade-audit-finished", AuditFinished, "env_id", "workers/validate", ("streams/score",))
    ENV_SCORED = TopicSpec("spade-env-scored", EnvScored, "run_id", "streams/score", ("streams/batch", "streams/rollout"))
    GENERATION_CLOSED = TopicSpec(
        "spade-generation-closed", GenerationClosed, "run_id", "streams/batch", ("streams/design", "streams/batch")
    )
    BATCH_READY = TopicSpec("spade-batch-ready", BatchReady, "run_id", "streams/batch", ("trainer",))
    STEP_FINISHED = TopicSpec("spade-step-finished", StepFinished, "run_id", "trainer", ("trainer",))
    POLICY_PUBLISHED = TopicSpec("spade-policy-published", PolicyPublished, "run_id", "trainer", ("workers", "streams"))
    EVAL_FINISHED = TopicSpec("spade-eval-finished", EvalFinished, "run_id", "spade eval", ("people",))
    DEAD_LETTER = TopicSpec("spade-dead-letter", DeadLetter, "origin", "anyone", ("people",), 30 * DAY_MS)

    @property
    def wire(self) -> str:
        """The topic's name at the broker."""
        return self.value.name

    @property
    def record(self) -> type[Record]:
        """The record type that the topic holds."""
        return self.value.record

    @property
    def is_run_topic(self) -> bool:
        """Whether one run lies in one partition, in total order."""
        return self.value.key == "run_id"


BY_WIRE: dict[str, Topic] = {topic.wire: topic for topic in Topic}
BY_RECORD: dict[type[Record], Topic] = {topic.record: topic for topic in Topic}


def key_of(record: Record, unit_index: int = 0) -> bytes:
    """The record's key by the topic table. Units are placed by number, so their key is only told."""
    topic = BY_RECORD[type(record)]
    match topic.value.key:
        case "run_id":
            return record.run_id.encode()
        case "env_id":
            return str(getattr(record, "env_id", record.run_id)).encode()
        case "unit":
            return str(getattr(record, "unit_id", unit_index)).encode()
        case _:
            return record.run_id.encode()
