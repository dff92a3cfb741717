"""What the log says of one run, small enough to keep: where each record stands first, its copies, and who did what to whom.

In: the log, to the end that it has now. Out: Evidence. Called by `spade chaos`, with or without a storm. Blocks up to the stated
deadlines; raises BrokerError and StageTimeoutError. Copies are held against the first by a digest over what decides: clocks,
tries and the places of references may differ.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.claims import from_bytes
from infra.kafka import count_partitions, make_consumer, unreachable
from schemas.common import Record
from schemas.design import DesignRequested, EnvProposed, EnvRejected, EnvValidated
from schemas.errors import RecordError, StageTimeoutError
from schemas.process import BrokerSettings
from schemas.rollout import AuditFinished, AuditRequested, RolloutFinished, RolloutRequested
from schemas.run import DeadLetter, RunEnding, RunFinished, RunStarted
from schemas.score import EnvScored, GenerationClosed
from schemas.topics import Topic
from schemas.train import BatchReady, PolicyPublished, StepFinished

SILENCE_LIMIT_S = 60.0  # without a record, before the end of the log
# Told and never used to decide; a second copy of a proposal stands elsewhere than the first, and so does what refers to it.
TOLD = frozenset({"created_at", "tries", "seconds", "gate_cpu_s", "gate_wall_s", "proof", "evidence", "partition", "offset"})
TOLD_OF_POLICY = frozenset({"place", "causation_id"})

Place = tuple[int, int]  # partition, offset
Group = tuple[str, int, int]  # env_id, step, repeat


@dataclass
class Evidence:
    """One run's log, in the order in which it was taken."""

    run_id: str
    places: dict[Topic, dict[str, Place]] = field(default_factory=lambda: defaultdict(dict))  # event id -> its first copy
    copies: Counter[Topic] = field(default_factory=Counter)
    unequal: list[str] = field(default_factory=list)  # copies that differ from the first
    started: RunStarted | None = None
    ending: RunEnding | None = None
    finished: RunFinished | None = None
    designs_asked: set[str] = field(default_factory=set)
    designs_written: dict[str, str] = field(default_factory=dict)  # env_id -> why it was lost, or ""
    designs_judged: set[str] = field(default_factory=set)
    plays_asked: dict[str, Group] = field(default_factory=dict)
    plays_ended: dict[str, str] = field(default_factory=dict)  # play_id -> why it was lost, or ""
    audits_asked: set[str] = field(default_factory=set)
    audits_ended: set[str] = field(default_factory=set)
    scores: dict[Group, list[str]] = field(default_factory=dict)  # the plays of the first score
    scored_again: list[Group] = field(default_factory=list)  # by another record than the first and its copies
    rewards: dict[str, int] = field(default_factory=dict)  # generation-closed's event id -> designs in it
    batches: dict[int, BatchReady] = field(default_factory=dict)
    batches_again: list[int] = field(default_factory=list)
    steps: dict[int, StepFinished] = field(default_factory=dict)
    policies: dict[int, list[str]] = field(default_factory=dict)  # version -> digests in log order
    dead_letters: set[tuple[str, int, int]] = field(default_factory=set)
    _digests: dict[str, bytes] = field(default_factory=dict)

    def take(self, topic: Topic, partition: int, offset: int, record: Record) -> bool:
        """Notes a record; whether it is the first copy. Records of other runs are passed over."""
        if record.run_id != self.run_id:
            return False
        known = self.places[topic]
        name, digest = f"{topic.wire}/{record.event_id}", content_digest(record)
        if known.get(record.event_id) == (partition, offset):
            return False  # read again
        if record.event_id in known:
            self.copies[topic] += 1
            if self._digests[name] != digest:
                self.unequal.append(f"{topic.wire}:{partition}:{offset} ({record.event_id})")
            return False
        known[record.event_id] = (partition, offset)
        self._digests[name] = digest
        self._note(record)
        return True

    def _note(self, record: Record) -> None:
        match record:
            case RunStarted():
                self.started = record
            case RunEnding():
                self.ending = self.ending or record
            case RunFinished():
                self.finished = record
            case DesignRequested():
                self.designs_asked.update(slot.env_id for slot in record.slots)
            case EnvProposed():
                self.designs_written[record.env_id] = record.lost
            case EnvValidated() | EnvRejected():
                self.designs_judged.add(record.env_id)
            case RolloutRequested():
                self.plays_asked.update({play.play_id: (play.env_id, record.step, record.repeat) for play in record.plays})
            case RolloutFinished():
                self.plays_ended[record.play_id] = record.lost
            case AuditRequested():
                self.audits_asked.add(record.play_id)
            case AuditFinished():
                self.audits_ended.add(record.play_id)
            case DeadLetter():
                self.dead_letters.add((record.origin_topic, record.partition, record.offset))
            case _:
                self._note_decision(record)

    def _note_decision(self, record: Record) -> None:
        match record:
            case EnvScored(env_id=env_id, step=step, repeat=repeat):
                if (env_id, step, repeat) in self.scores:
                    self.scored_again.append((env_id, step, repeat))
                else:
                    self.scores[env_id, step, repeat] = [play.play_id for arm in record.arms for play in arm.plays]
            case GenerationClosed():
                self.rewards[record.event_id] = len(record.designs)
            case BatchReady(step=step):
                if step in self.batches:
                    self.batches_again.append(step)
                else:
                    self.batches[step] = record
            case StepFinished(step=step):
                self.steps.setdefault(step, record)
            case PolicyPublished(version=version):
                self.policies.setdefault(version, []).append(record.digest)
            case _:
                pass  # slots-closed and evaluations: held by their copies only


def content_digest(record: Record) -> bytes:
    """A digest over everything in a record that may decide."""
    dropped = TOLD | TOLD_OF_POLICY if isinstance(record, PolicyPublished) else TOLD
    plain = _without(msgspec.to_builtins(record, builtin_types=(bytes,)), dropped)
    return hashlib.blake2b(msgspec.msgpack.encode(plain, order="deterministic"), digest_size=16).digest()


def _without(value: Any, dropped: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, dropped) for key, inner in value.items() if key not in dropped}
    return [_without(inner, dropped) for inner in value] if isinstance(value, list) else value


class LogFollower:
    """Reads every topic of a broker from the start, all partitions, and hands the run's records to an Evidence."""

    def __init__(self, broker: BrokerSettings, evidence: Evidence) -> None:
        self._broker = broker
        self.evidence = evidence
        self.records = 0  # read, of whatever run
        self._consumer: KafkaConsumer = make_consumer(broker, None, ())
        self._topics = {topic.wire: topic for topic in Topic}
        self._parts = [
            TopicPartition(topic.wire, number)
            for topic in Topic
            for number in range(count_partitions(self._consumer, topic.wire, broker))
        ]
        self._consumer.assign(self._parts)
        self._consumer.seek_to_beginning(*self._parts)

    def poll(self, timeout_s: float = 0.2) -> list[tuple[Topic, Record]]:
        """First copies that came, waiting up to `timeout_s`. Bytes that are no record are left out: readers bury them."""
        fresh = []
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as problem:
            raise unreachable(self._broker, problem) from problem
        for part, messages in batches.items():
            topic = self._topics[part.topic]
            self.records += len(messages)
            for message in messages:
                try:
                    record = from_bytes(topic, message.value or b"", self._broker, self.evidence.run_id)
                except RecordError:
                    continue
                if self.evidence.take(topic, message.partition, message.offset, record):
                    fresh.append((topic, record))
        return fresh

    def catch_up(self) -> None:
        """Reads to the ends that the topics have now; StageTimeoutError after SILENCE_LIMIT_S without a record."""
        try:
            ends = self._consumer.end_offsets(self._parts)
            last, heard = -1, time.monotonic()
            while behind := [part for part in self._parts if self._consumer.position(part) < ends[part]]:
                self.poll()
                if self.records != last:
                    last, heard = self.records, time.monotonic()
                if time.monotonic() - heard > SILENCE_LIMIT_S:
                    raise StageTimeoutError(
                        f"{len(behind)} partitions were not read to their ends: no record for {SILENCE_LIMIT_S:.0f} s",
                        f"Check broker {self._broker.address}",
                    )
        except KafkaError as problem:
            raise unreachable(self._broker, problem) from problem

    def close(self) -> None:
        """Closes the connection."""
        self._consumer.close()


def read_evidence(broker: BrokerSettings, run_id: str) -> Evidence:
    """The whole log of a run as it stands now."""
    follower = LogFollower(broker, Evidence(run_id))
    try:
        follower.catch_up()
        return follower.evidence
    finally:
        follower.close()
