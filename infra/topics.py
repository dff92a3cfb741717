"""Creates the topics of the topic table, idempotently. Called by `spade topics`, `spade run`, `spade demo` and the tests."""

from __future__ import annotations

from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError

from infra.kafka import make_admin, unreachable
from schemas.errors import BrokerError
from schemas.process import BrokerSettings
from schemas.topics import MAX_MESSAGE_BYTES, PARTITIONS, Topic


def create_topics(settings: BrokerSettings, *, partitions: int = PARTITIONS, replication: int = -1) -> list[str]:
    """Creates the topics that are missing; their names. `replication` -1: the broker's default.

    Raises BrokerError when the broker does not answer or a topic that exists has another number of partitions (keys would move).
    """
    admin = make_admin(settings)
    created: list[str] = []
    try:
        for missing in iter(lambda: _missing(admin, settings, partitions), []):
            wanted = {topic.wire: _config(topic, partitions, replication) for topic in missing}
            try:
                admin.create_topics(wanted, wait_for_metadata=True)
                created.extend(wanted)
            except TopicAlreadyExistsError:  # another process makes them too: look again for what is left
                continue
    except (KafkaError, OSError) as problem:
        raise unreachable(settings, problem) from problem
    finally:
        admin.close()
    return created


def _missing(admin: KafkaAdminClient, settings: BrokerSettings, partitions: int) -> list[Topic]:
    standing = {found["name"]: len(found["partitions"]) for found in admin.describe_topics()}
    for topic in Topic:
        found = standing.get(topic.wire, partitions)
        if found != partitions:
            raise BrokerError(
                f"topic {topic.wire} at {settings.address} has {found} partitions, the run wants {partitions}",
                f"Use partitions = {found} in the recipe, or another broker",
            )
    return [topic for topic in Topic if topic.wire not in standing]


def _config(topic: Topic, partitions: int, replication: int) -> dict[str, Any]:
    return {
        "num_partitions": partitions,
        "replication_factor": replication,
        "configs": {
            "retention.ms": str(topic.value.retention_ms),
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "max.message.bytes": str(MAX_MESSAGE_BYTES + 2 * 1024 * 1024),
        },
    }
