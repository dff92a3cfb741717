"""Clients of the log, under one name: producers, group consumers, readers without a group, admin.

Faust apps bring their own client and share keys and partitions with these (tests/contract/test_broker_keys.py). Everything here
may block up to its stated deadline and raises BrokerError when the broker does not answer.
"""

from infra.kafka_clients import (
    check_broker,
    client_options,
    count_partitions,
    make_admin,
    make_consumer,
    partition_of,
    subscribe,
    unit_partition,
    unreachable,
)
from infra.kafka_groups import find_deserted, tell_deserted
from infra.kafka_producer import RecordProducer, Sent, make_producer
from infra.kafka_reader import ControlReader, LogEntry, RecordFetcher, fetch, read_log
from infra.kafka_watch import BrokerWatch

__all__ = [
    "BrokerWatch",
    "ControlReader",
    "LogEntry",
    "RecordFetcher",
    "RecordProducer",
    "Sent",
    "check_broker",
    "client_options",
    "count_partitions",
    "fetch",
    "find_deserted",
    "make_admin",
    "make_consumer",
    "make_producer",
    "partition_of",
    "read_log",
    "subscribe",
    "tell_deserted",
    "unit_partition",
    "unreachable",
]
