"""Kafka's Java client, kafka-python, aiokafka (below Faust) and our readers place a key in the same partition."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from infra.kafka import make_producer, partition_of
from schemas.process import BrokerSettings
from schemas.run import RunEnding
from schemas.topics import PARTITIONS, Topic


@given(st.binary(min_size=1, max_size=60), st.integers(min_value=1, max_value=100))
def test_aiokafka_and_our_readers_agree_on_every_key(key: bytes, partitions: int) -> None:
    every = list(range(partitions))
    assert DefaultPartitioner()(key, every, every) == partition_of(key, partitions)


def test_known_hashes_of_the_java_client() -> None:
    # Murmur2 vectors of Kafka's own UtilsTest: hash of "21" is -973932308, of "foobar" -790332482.
    assert partition_of(b"21", 2**31) == -973932308 & 0x7FFFFFFF
    assert partition_of(b"foobar", 2**31) == -790332482 & 0x7FFFFFFF


@pytest.mark.integration
def test_both_clients_write_a_run_to_the_partition_that_readers_expect(broker_settings: BrokerSettings, run_id: str) -> None:
    expected = partition_of(run_id.encode(), PARTITIONS)
    record = RunEnding(run_id=run_id, event_id="e", last_generation=0, cause="")
    with make_producer(broker_settings) as producer:
        (reference,) = producer.send_all([(Topic.RUN_ENDING, record)])

    async def send() -> int:
        other = AIOKafkaProducer(bootstrap_servers=broker_settings.address)
        await other.start()
        try:
            return int((await other.send_and_wait(Topic.RUN_ENDING.wire, b"x", key=run_id.encode())).partition)
        finally:
            await other.stop()

    assert reference.partition == expected
    assert asyncio.run(send()) == expected
