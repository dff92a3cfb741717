"""What one process is told at its start: how to reach Kafka and the store, which run, where it may write.

Given by the supervisor, or by a person's options. All else stands in the run's first record.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.settings import Settings


class BrokerSettings(Settings):
    """How to reach Kafka. Secrets come from files, never from the command line."""

    address: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    timeout_s: float = Field(default=30, gt=0)
    """Longest wait for the broker before a command gives up."""
    away_s: float = Field(default=120, gt=0)
    """How long a process at work waits for a broker that is gone, before it stops with the cause."""
    claims: str = ""
    """A folder or fsspec URL that all processes of the run reach, for records larger than a message; empty: they are refused."""


class ProcessContext(Settings):
    """One process's own settings."""

    broker: BrokerSettings = BrokerSettings()
    store_dsn: str = ""
    run_id: str = ""
    """Empty: the newest run that has not finished."""
    state_dir: str = ""
    """Where this process may write: checkpoints, policies, slots."""
    log_json: bool = False
    metrics_port: int = 0
    """0: no metrics endpoint."""
