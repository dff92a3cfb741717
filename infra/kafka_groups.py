"""Which pools of a run nobody works in: consumer groups without a member, and what waits for them.

In: BrokerSettings and a run. Out: names with the records that wait, as told to a person when something did not come. Called
through infra.kafka by the trainer. Blocks up to the clients' timeouts; raises BrokerError.
"""

from __future__ import annotations

import time

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import GroupIdNotFoundError, KafkaError, RetriableError

from infra.kafka_clients import count_partitions, make_admin, make_consumer, unreachable
from schemas.process import BrokerSettings
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
COORDINATOR_LIMIT_S = 15.0
EMPTY = frozenset({"Empty", "Dead", ""})


def pool_group(pool: str, run_id: str) -> str:
    """The consumer group of a pool in a run."""
    return f"spade-{pool}-{run_id}"


def find_deserted(broker: BrokerSettings, run_id: str) -> dict[str, int]:
    """Pools without a living member -> how many records wait for them (0 where nothing does)."""
    admin, consumer = make_admin(broker), make_consumer(broker, None, ())
    try:
        deserted = [pool for pool in POOLS if _is_deserted(_described(admin, pool_group(pool, run_id)))]
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


def _described(admin: KafkaAdminClient, group: str) -> object:
    """What the broker says of a group; None where it knows none. A coordinator that is just coming up is asked again."""
    end = time.monotonic() + COORDINATOR_LIMIT_S
    while True:
        try:
            return admin.describe_groups([group]).get(group)
        except GroupIdNotFoundError:
            return None
        except RetriableError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


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
