"""Consumer lag by group, and a run's position by its run topics. Called by `spade status` and the demo's wait for memory."""

from __future__ import annotations

from dataclasses import dataclass

from kafka.errors import KafkaError

from infra.kafka import ControlReader, make_admin, make_consumer, unreachable
from schemas.run import RunEnding, RunFinished
from schemas.score import GenerationClosed
from schemas.settings import BrokerSettings
from schemas.topics import Topic
from schemas.train import PolicyPublished, StepFinished


@dataclass(frozen=True)
class Backlog:
    """What one consumer group has not acknowledged yet, over all its partitions."""

    group: str
    lag: int
    position: str


@dataclass
class Status:
    """Where a run stands."""

    state: str = "running"
    version: int = -1
    step: int = -1
    generation: int = -1


def read_status(broker: BrokerSettings, run_id: str) -> Status:
    """Reads the run's topics to their present ends."""
    found = Status()
    topics = (Topic.POLICY_PUBLISHED, Topic.STEP_FINISHED, Topic.GENERATION_CLOSED, Topic.RUN_ENDING, Topic.RUN_FINISHED)
    with ControlReader(broker, topics, run_id) as reader:
        for _, _, _, record in reader.catch_up():
            match record:
                case PolicyPublished():
                    found.version = max(found.version, record.version)
                case StepFinished():
                    found.step = max(found.step, record.step)
                case GenerationClosed():
                    found.generation = max(found.generation, record.generation)
                case RunEnding():
                    found.state = f"ending after generation {record.last_generation}: {record.cause}"
                case RunFinished():
                    found.state = f"finished: {record.cause}"
    return found


def read_backlog(broker: BrokerSettings, run_id: str) -> list[Backlog]:
    """Lag of every consumer group of the run, by name. Raises BrokerError."""
    admin, consumer = make_admin(broker), make_consumer(broker, None, ())
    try:
        groups = sorted(name for name in (_name(group) for group in admin.list_groups()) if name.endswith(f"-{run_id}"))
        rows = []
        for group in groups:
            committed = {
                part: meta.offset for part, meta in admin.list_group_offsets({group: None})[group].items() if meta.offset >= 0
            }
            ends = consumer.end_offsets(list(committed)) if committed else {}
            lag = sum(max(ends[part] - offset, 0) for part, offset in committed.items())
            behind = max(committed, key=lambda part: ends[part] - committed[part], default=None)
            shown = (
                f"{behind.topic}:{behind.partition} at {committed[behind]} of {ends[behind]}" if behind else "nothing read yet"
            )
            rows.append(Backlog(group=group, lag=lag, position=shown))
        return rows
    except (KafkaError, OSError) as problem:
        raise unreachable(broker, problem) from problem
    finally:
        admin.close()
        consumer.close()


def _name(group: object) -> str:
    if isinstance(group, dict):
        return str(group.get("group_id", ""))
    return str(getattr(group, "group_id", None) or (group[0] if isinstance(group, tuple) else group))
