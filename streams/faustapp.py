"""The Faust app of one stage: settings, and a consumer that commits exactly what our ledgers have finished.

In: stage, run, broker. Out: a faust.App without tables, web or agents of its own. Called by streams/shell.py. Pinned to
faust-streaming 0.15.3, whose own commit position passes exactly one open record and ignores open ones at the head of the log.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any

import faust
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.transport.drivers.aiokafka import Consumer as FaustConsumer
from mode.threads import WorkerThread

from infra.kafka_clients import REQUEST_BYTES, read_secret
from schemas.process import BrokerSettings
from schemas.topics import Topic

COMMIT_INTERVAL_S = 0.5
SESSION_TIMEOUT_S = 30.0  # a process starved of its core is not dead; restarts don't wait for it (membership)
HEARTBEAT_S = 3.0
BUFFERED_RECORDS = 256  # of one stream; episodes are large

CommitPosition = Callable[[str, int], int | None]  # topic, partition -> offset after the finished prefix


class LetGoThread(WorkerThread):  # type: ignore[misc]
    """The thread of Faust's consumer, which ends with the process: where the broker is away it looks for its group for ever, and
    a stage that has given up with its cause would never exit."""

    def __init__(self, service: Any, **options: Any) -> None:
        super().__init__(service, **options)
        self.daemon = True


def consumer_type(position_of: CommitPosition) -> type[Any]:
    """A Faust consumer that commits `position_of(topic, partition)`, whatever Faust believes was acknowledged.

    Faust also acknowledges records that it skips because they were fetched before a rebalance; by its own count these would
    move the commit past records that are held.
    """

    class LedgerConsumer(FaustConsumer):  # type: ignore[misc]
        """Commits the ledgers' positions."""

        def _new_consumer_thread(self) -> Any:
            return AIOKafkaConsumerThread(self, loop=self.loop, beacon=self.beacon, Worker=LetGoThread)

        def _new_offset(self, tp: Any) -> int | None:
            self._acked[tp].clear()
            self._acked_index[tp].clear()
            self._gap.pop(tp, None)
            return position_of(tp.topic, tp.partition)

    return LedgerConsumer


def make_app(name: str, broker: BrokerSettings, data_dir: str, position_of: CommitPosition, instance_id: str = "") -> Any:
    """The app named `name`, which is its consumer group too; `instance_id`: its static name there, "" for none.

    Must be called in the event loop that runs it.
    """
    app = faust.App(
        name,
        broker=[f"kafka://{address}" for address in broker.address.split(",")],
        broker_credentials=_credentials(broker),
        datadir=data_dir,
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        processing_guarantee="at_least_once",
        # Records are held unacknowledged by design: a rebalance that waits for them waits for ever.
        stream_wait_empty=False,
        stream_buffer_maxsize=BUFFERED_RECORDS,
        broker_commit_interval=COMMIT_INTERVAL_S,
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=HEARTBEAT_S,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance_id or None,
        consumer_max_fetch_size=REQUEST_BYTES,
        producer_max_request_size=REQUEST_BYTES,
        producer_acks=-1,
        producer_compression_type="zstd",
    )
    app.transport.Consumer = consumer_type(position_of)
    return app


def raw_topic(app: Any, topics: Sequence[Topic]) -> Any:
    """Topics as bytes: a typed topic crashes on an undecodable record and commits its neighbours unprocessed."""
    return app.topic(
        *[topic.wire for topic in topics], key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )


def _credentials(broker: BrokerSettings) -> Any:
    if broker.security_protocol == "PLAINTEXT":
        return None
    context = ssl.create_default_context(cafile=broker.ca_file or None) if "SSL" in broker.security_protocol.split("_") else None
    if broker.security_protocol == "SSL":
        return faust.SSLCredentials(context)
    return faust.SASLCredentials(
        username=broker.username,
        password=read_secret(broker.password_file),
        mechanism=broker.sasl_mechanism or "PLAIN",
        ssl_context=context,
    )
