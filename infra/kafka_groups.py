"""Which pools of a run nobody works in: consumer groups without a member, and what waits for them.

In: BrokerSettings and a run. Out: names with the records that wait, as told to a person when something did not come. Called
through infra.kafka by the trainer. Blocks up to the clients' timeouts; raises BrokerError.
"""

from __future__ import annotations

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from infra.kafka_clients import count_partitions, make_admin, make_consumer, unreachable
from schemas.settings import BrokerSettings
from schemas.topics import Topic

# Pool -> what its group reads; the group's name ends with the run's id. Memory is no part of the loop that a batch comes from.
POOLS: dict[str, tuple[Topic, ...]] = {
    "work-design": (Topic.DESIGN_REQUESTED,),
    "work-validate": (Topic.ENV_PROPOSED, Topic.AUDIT_REQUESTED),
    "work-rollout": (Topic.ROLLOUT_REQUESTED,),
    "stream-design": (Topic.ENV_VALIDATED, Topic.ENV_REJECTED),
    "stream-rollout": (Topic.SLOTS_CLOSED,),
    "stream-score": (Topic.ROLLOUT_FINISHED, Topic.AUDIT_FINISHED),
    "stream-batch": (Topic.ENV_SCORED,),
}
EMPTY = frozenset({"Empty", "Dead", ""})


def pool_group(pool: str, run_id: str) -> str:
    """The consumer group of a pool in a run."""
    return f"spade-{pool}-{run_id}"


def find_deserted(broker: BrokerSettings, run_id: str) -> dict[str, int]:
    """Pools without a living member -> how many records wait for them (0 where nothing does)."""
    admin, consumer = make_admin(broker), make_consumer(broker, None, ())
    try:
        groups = {pool_group(pool, run_id): pool for pool in POOLS}
        told = admin.describe_groups(list(groups))
        deserted = [pool for group, pool in groups.items() if _is_deserted(told.get(group))]
        return {pool: _waiting(admin, consumer, broker, pool, run_id) for pool in deserted}
    except (KafkaError, OSError) as problem:
        raise unreachable(broker, problem) from problem
    finally:
        admin.close()
        consumer.close()


def tell_deserted(deserted: dict[str, int]) -> str:
    """One clause for a message: which pools nobody works in."""
    if not deserted:
        return "every pool of the run has a process"
    pools = ", ".join(f"{pool} ({waiting} records wait)" if waiting else pool for pool, waiting in deserted.items())
    return f"no process works in {pools}"


def _is_deserted(group: object) -> bool:
    if not isinstance(group, dict):
        return True
    return not group.get("members") or str(group.get("group_state", "")) in EMPTY


def _waiting(admin: KafkaAdminClient, consumer: KafkaConsumer, broker: BrokerSettings, pool: str, run_id: str) -> int:
    group = pool_group(pool, run_id)
    commits = admin.list_group_offsets({group: None})[group]
    parts = [
        TopicPartition(topic.wire, number)
        for topic in POOLS[pool]
        for number in range(count_partitions(consumer, topic.wire, broker))
    ]
    starts, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
    return sum(ends[part] - max(commits[part].offset if part in commits else 0, starts[part]) for part in parts)
