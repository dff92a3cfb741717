"""Consumer lag by group and topic, and a run's position by its run topics. Called by `spade status`, `spade dashboard`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.kafka import ControlReader, make_admin, make_consumer, unreachable
from schemas.common import Record
from schemas.process import BrokerSettings
from schemas.run import RunEnding, RunFinished, RunStarted
from schemas.score import GenerationClosed
from schemas.topics import Topic
from schemas.train import PolicyPublished, StepFinished


@dataclass(frozen=True)
class TopicLag:
    """What one consumer group has not acknowledged yet of one topic, over its partitions. In records."""

    group: str
    topic: str
    committed: int
    end: int
    position: str
    """The partition that is furthest behind, as TOPIC:PARTITION at OFFSET of END."""

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0)


@dataclass(frozen=True)
class Backlog:
    """What one consumer group has not acknowledged yet, over all its partitions."""

    group: str
    lag: int
    position: str


@dataclass
class Status:
    """Where a run stands. Times are the writers' clocks, seconds since the epoch; 0 where nothing is known."""

    state: str = "running"
    recipe: str = ""
    version: int = -1
    step: int = -1
    generation: int = -1
    started_at: float = 0.0
    policy_at: float = 0.0
    last_at: float = 0.0
    closed: list[GenerationClosed] = field(default_factory=list)
    steps: list[StepFinished] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.state.startswith("finished")


STATUS_TOPICS = (
    Topic.RUN_STARTED,
    Topic.POLICY_PUBLISHED,
    Topic.STEP_FINISHED,
    Topic.GENERATION_CLOSED,
    Topic.RUN_ENDING,
    Topic.RUN_FINISHED,
)


def read_status(broker: BrokerSettings, run_id: str) -> Status:
    """Reads the run's topics to their present ends."""
    found = Status()
    with ControlReader(broker, STATUS_TOPICS, run_id) as reader:
        for _, _, _, record in reader.catch_up():
            take(found, record)
    return found


def take(found: Status, record: Record) -> None:
    """Adds what one control record tells."""
    found.last_at = max(found.last_at, record.created_at)
    match record:
        case RunStarted():
            found.started_at, found.recipe = record.created_at, record.recipe_json
        case PolicyPublished():
            if record.version > found.version:
                found.version, found.policy_at = record.version, record.created_at
        case StepFinished():
            if record.step > found.step:
                found.step = record.step
                found.steps.append(record)
        case GenerationClosed():
            if record.generation > found.generation:
                found.generation = record.generation
                found.closed.append(record)
        case RunEnding():
            found.state = f"ending after generation {record.last_generation}: {record.cause}"
        case RunFinished():
            found.state = f"finished: {record.cause}"
        case _:
            pass


def read_backlog(broker: BrokerSettings, run_id: str) -> list[Backlog]:
    """Lag of every consumer group of the run, by name. Raises BrokerError."""
    rows: dict[str, list[TopicLag]] = {}
    for row in read_lags(broker, run_id):
        rows.setdefault(row.group, []).append(row)
    return [
        Backlog(group=group, lag=sum(row.lag for row in own), position=max(own, key=lambda row: row.lag).position)
        for group, own in rows.items()
    ]


def read_lags(broker: BrokerSettings, run_id: str) -> list[TopicLag]:
    """Lag of every consumer group of the run by topic, in order of names. Raises BrokerError."""
    admin, consumer = make_admin(broker), make_consumer(broker, None, ())
    try:
        rows = []
        for group in sorted(name for name in map(_name, admin.list_groups()) if name.endswith(f"-{run_id}")):
            committed = {
                part: meta.offset for part, meta in admin.list_group_offsets({group: None})[group].items() if meta.offset >= 0
            }
            ends = consumer.end_offsets(list(committed)) if committed else {}
            rows += [_topic_lag(group, topic, committed, ends) for topic in sorted({part.topic for part in committed})]
            if not committed:
                rows.append(TopicLag(group=group, topic="", committed=0, end=0, position="nothing read yet"))
        return rows
    except (KafkaError, OSError) as problem:
        raise unreachable(broker, problem) from problem
    finally:
        admin.close()
        consumer.close()


def _topic_lag(group: str, topic: str, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> TopicLag:
    own = [part for part in committed if part.topic == topic]
    behind = max(own, key=lambda part: ends[part] - committed[part])
    return TopicLag(
        group=group,
        topic=topic,
        committed=sum(min(committed[part], ends[part]) for part in own),
        end=sum(ends[part] for part in own),
        position=f"{topic}:{behind.partition} at {committed[behind]} of {ends[behind]}",
    )


def _name(group: object) -> str:
    if isinstance(group, dict):
        return str(group.get("group_id", ""))
    return str(getattr(group, "group_id", None) or (group[0] if isinstance(group, tuple) else group))
