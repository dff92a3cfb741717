"""How every client of the log connects: options from settings, keys to partitions, admin and consumer.

In: BrokerSettings. Called through infra.kafka. May block up to settings.timeout_s; raises BrokerError when nothing answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError
from kafka.partitioner.default import murmur2

from schemas.errors import BrokerError, SettingsError
from schemas.process import BrokerSettings
from schemas.topics import MAX_MESSAGE_BYTES, Topic

# Kafka counts the envelope of a batch too, so a record of exactly the limit needs a little more.
REQUEST_BYTES = MAX_MESSAGE_BYTES + 1024 * 1024
FETCH_BYTES = 4 * REQUEST_BYTES


def client_options(settings: BrokerSettings) -> dict[str, Any]:
    """kafka-python's connection options. Raises SettingsError for a secret file that can't be read."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.address.split(","),
        "security_protocol": settings.security_protocol,
        "bootstrap_timeout_ms": int(settings.timeout_s * 1000),
        "reconnect_backoff_max_ms": 1000,
    }
    if settings.ca_file:
        options["ssl_cafile"] = settings.ca_file
    if settings.security_protocol.startswith("SASL"):
        options["sasl_mechanism"] = settings.sasl_mechanism or "PLAIN"
        options["sasl_plain_username"] = settings.username
        options["sasl_plain_password"] = read_secret(settings.password_file)
    return options


def read_secret(path: str) -> str:
    """The first line of a secret file."""
    try:
        return Path(path).read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError as problem:
        raise SettingsError(
            f"the password file {path!r} can't be read ({problem.strerror})", "Name a file that you may read"
        ) from problem


def unreachable(settings: BrokerSettings, problem: BaseException) -> BrokerError:
    """The error for a broker that does not answer."""
    name, text = type(problem).__name__, str(problem)  # some of Kafka's errors name their class in their text
    return BrokerError(
        f"can't reach broker {settings.address} ({text if text.startswith(name) else f'{name}: {text}'})",
        "Start it (`spade up` for a local one) or name another address with --broker",
    )


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, as every client of ours places it (murmur2, as Kafka's own Java client)."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


def unit_partition(index: int, units: int, partitions: int) -> int:
    """The partition of unit `index` of `units`: spread evenly over the pool, in order."""
    return index * partitions // max(units, 1) % partitions


def make_admin(settings: BrokerSettings) -> KafkaAdminClient:
    """An admin client; raises BrokerError when the broker does not answer within settings.timeout_s."""
    try:
        return KafkaAdminClient(**client_options(settings))
    except (KafkaError, OSError) as problem:
        raise unreachable(settings, problem) from problem


def check_broker(settings: BrokerSettings, timeout_s: float = 10.0) -> dict[str, Any]:
    """Asks the broker to describe its cluster; returns the answer. Raises BrokerError within about `timeout_s`."""
    admin = make_admin(settings.model_copy(update={"timeout_s": timeout_s}))
    try:
        return dict(admin.describe_cluster())
    except (KafkaError, OSError) as problem:
        raise unreachable(settings, problem) from problem
    finally:
        admin.close()


def make_consumer(
    settings: BrokerSettings,
    group: str | None,
    topics: Sequence[Topic],
    *,
    instance_id: str | None = None,
    max_poll_records: int = 500,
    session_timeout_s: float = 10.0,
    max_poll_interval_s: float = 300.0,
    offset_reset: str = "earliest",
) -> KafkaConsumer:
    """A consumer of raw bytes that commits only when told. `group` None: no group, the caller assigns partitions.

    While slow work runs, pause the partitions and go on polling: one that does not poll for max_poll_interval_s loses them.
    """
    options: dict[str, Any] = {"group_instance_id": instance_id} if instance_id else {}
    try:
        consumer = KafkaConsumer(
            **client_options(settings),
            **options,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=offset_reset,
            allow_auto_create_topics=False,
            max_poll_records=max_poll_records,
            # With them a partition that was paused, or sought to where it stood, is not fetched again (3.0.12, measured).
            enable_incremental_fetch_sessions=False,
            max_partition_fetch_bytes=REQUEST_BYTES,
            fetch_max_bytes=FETCH_BYTES,
            fetch_max_wait_ms=500,  # new records end a wait at once; each wait costs the broker two milliseconds of CPU
            session_timeout_ms=int(session_timeout_s * 1000),
            heartbeat_interval_ms=int(session_timeout_s * 1000 / 4),
            max_poll_interval_ms=int(max_poll_interval_s * 1000),
        )
    except (KafkaError, OSError) as problem:
        raise unreachable(settings, problem) from problem
    coordinator = consumer._coordinator  # nothing public reaches it; tests/integration/test_broker_clients.py notices a change
    if coordinator is not None:
        _finish_joins(coordinator)
    _take_up_what_was_parked(consumer._fetcher)
    if topics:
        subscribe(consumer, topics, settings)
    return consumer


def _finish_joins(coordinator: Any) -> None:
    """Makes a poll wait for a join that an earlier poll began, until it has ended.

    kafka-python 3.0.12 asks whether a join is needed, not whether one is under way. Where a poll's time ends between the answers
    to JoinGroup and SyncGroup, the leader of a rebalance that new metadata caused has taken note of the metadata already; the
    next poll sees no need, nobody takes up the assignment, heartbeats stay off, and the consumer polls for ever with nothing.
    """
    is_needed = coordinator.need_rejoin
    coordinator.need_rejoin = lambda: coordinator.rejoining or is_needed()


def _take_up_what_was_parked(fetcher: Any) -> None:
    """Gives a partition's records back that were put aside while it was paused.

    kafka-python 3.0.12 puts the rest of a read batch aside where its partition is paused, fetches nothing of that partition as
    long, and takes the rest up again only where no other batch is in its place. A batch that was read to its end stays in that
    place: after it the partition is never read again, though it is resumed, and also where it goes and comes back in a rebalance.
    """
    fetch_records = fetcher.fetch_records

    def fetch_with_room(*arguments: Any, **options: Any) -> Any:
        if not fetcher._next_partition_records:  # read to its end, or none
            fetcher._next_partition_records = None
        return fetch_records(*arguments, **options)

    fetcher.fetch_records = fetch_with_room


def subscribe(
    consumer: KafkaConsumer, topics: Sequence[Topic], settings: BrokerSettings, listener: ConsumerRebalanceListener | None = None
) -> None:
    """Subscribes, and learns the topics' partitions before the group is joined: else it is joined twice. Raises BrokerError."""
    names = [topic.wire for topic in topics]
    try:
        consumer.subscribe(names, listener=listener)
        for name in names:
            consumer.partitions_for_topic(name)
    except KafkaError as problem:
        raise unreachable(settings, problem) from problem


def count_partitions(consumer: KafkaConsumer, wire: str, settings: BrokerSettings) -> int:
    """How many partitions a topic has; BrokerError where it does not exist."""
    try:
        partitions = consumer.partitions_for_topic(wire)
    except KafkaError as problem:
        raise unreachable(settings, problem) from problem
    if not partitions:
        raise BrokerError(f"broker {settings.address} has no topic {wire}", "Run `spade topics` once")
    return len(partitions)
