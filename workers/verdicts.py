"""The verdicts that a run has given already: a design equal to one that was judged takes its verdict, whoever judged it.

In: the run's spade-env-validated and spade-env-rejected records, read without a group, and the verdicts of this process. Out: a
verdict with the event that gave it first. Called by workers.validate, in the thread that judges. Holds REMEMBERED verdicts and
drops those longest unused; what is dropped is judged again, with the same result. Blocks for a round trip to the broker; raises
SpadeError.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from infra.kafka import LogEntry
from infra.telemetry import get_logger
from schemas.common import Record
from schemas.design import EnvRejected, EnvValidated
from schemas.errors import StageTimeoutError
from schemas.topics import Topic
from workers.gate import RuleProof, Verdict

REMEMBERED: Final = 1024
READ_S: Final = 120.0
LOST: Final = "lost"
PARSE: Final = "parse"
READ: Final = (Topic.ENV_VALIDATED, Topic.ENV_REJECTED)
notes = get_logger("workers.verdicts")


class Log(Protocol):
    """Where verdicts are read: a ControlReader over READ."""

    def catch_up(self, deadline_s: float = 60.0) -> list[LogEntry]:
        """Every record from where it stands to the end that the log has now."""
        ...


@dataclass(frozen=True)
class Known:
    """A verdict and the event of the record that holds it."""

    verdict: Verdict
    event_id: str


class VerdictBook:
    """Verdicts by the digest of source and hint. Without a log it knows those of this process alone."""

    def __init__(self, log: Log | None = None, remembered: int = REMEMBERED) -> None:
        self._log = log
        self._remembered = remembered
        self._known: OrderedDict[str, Known] = OrderedDict()

    def find(self, source: str, hint: str) -> Known | None:
        """The verdict on an equal design, from memory or from what the log holds by now."""
        key = digest(source, hint)
        if key not in self._known and self._log is not None:
            self._read(self._log)
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key]

    def note(self, source: str, hint: str, verdict: Verdict, event_id: str) -> None:
        """Keeps a verdict; the first on a design counts."""
        key = digest(source, hint)
        self._known.setdefault(key, Known(verdict, event_id))
        self._known.move_to_end(key)
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)

    def learn(self, records: Iterable[Record]) -> None:
        """Keeps the verdicts of these records. A design that was lost or could not be read has none."""
        for record in records:
            if isinstance(record, EnvValidated):
                self.note(record.full_source, record.hint, _admitted(record), record.verdict_from or record.event_id)
            elif isinstance(record, EnvRejected) and record.rule not in (LOST, PARSE):
                self.note(record.source, record.hint, _refused(record), record.verdict_from or record.event_id)

    def _read(self, log: Log) -> None:
        """Learns what the log holds by now. A log too long to be read in time costs judgements, never the worker."""
        try:
            self.learn(record for _, _, _, record in log.catch_up(READ_S))
        except StageTimeoutError as late:
            notes.warning("earlier verdicts were not read in time: equal designs are judged again", cause=str(late))


def digest(source: str, hint: str) -> str:
    """What makes two designs equal for the gate."""
    return hashlib.sha256(f"{source}\x00{hint}".encode("utf-8", "surrogatepass")).hexdigest()


def _admitted(record: EnvValidated) -> Verdict:
    return Verdict(
        admitted=True,
        rule="",
        evidence="",
        proof=_proof(record),
        play_source=record.source,
        source_digest=record.source_digest,
        play_digest=hashlib.sha256(record.source.encode("utf-8", "surrogatepass")).hexdigest(),
        signature=tuple(record.signature),
        witness_min_return=record.witness_min_return,
        witness_mean_return=record.witness_mean_return,
        reward_min=record.reward_min,
        cpu_s=0.0,
        wall_s=0.0,
    )


def _refused(record: EnvRejected) -> Verdict:
    return Verdict(
        admitted=False,
        rule=record.rule,
        evidence=record.evidence,
        proof=_proof(record),
        play_source="",
        source_digest="",
        play_digest="",
        signature=(),
        witness_min_return=0.0,
        witness_mean_return=0.0,
        reward_min=0.0,
        cpu_s=0.0,
        wall_s=0.0,
    )


def _proof(record: EnvValidated | EnvRejected) -> tuple[RuleProof, ...]:
    return tuple(RuleProof(one.rule, one.passed, one.evidence, dict(one.numbers)) for one in record.proof)
