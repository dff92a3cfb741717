"""What Kafka's client may say in our log by itself. Loads no library: every command calls it at its start."""

from __future__ import annotations

import logging


def quieten_kafka() -> None:
    """Leaves only errors, and none that come with every retry: what ends the retries is raised."""
    logging.getLogger("kafka").setLevel(logging.ERROR)
    for name in ("kafka.net", "kafka.cluster", "kafka.consumer.fetcher"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
