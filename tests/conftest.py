"""One real broker and one real store for the whole test session, on free ports in temporary folders, ended by process id."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.migrate import migrate
from infra.topics import create_topics
from schemas.settings import BrokerSettings


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A running broker with every topic of the topic table. Shared: use a run_id and a group of your own, and don't stop it."""
    folder: Path = tmp_path_factory.mktemp("broker")
    local = LocalBroker.start(folder)
    try:
        create_topics(BrokerSettings(address=local.address))
        yield local
    finally:
        local.stop()


@pytest.fixture(scope="session")
def broker_settings(broker: LocalBroker) -> BrokerSettings:
    """How to reach the shared broker."""
    return BrokerSettings(address=broker.address)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    """A running store with the migrations applied. Shared: filter by a run_id of your own, and don't stop it."""
    local = LocalStore.start(tmp_path_factory.mktemp("store"))
    try:
        migrate(local.dsn)
        yield local
    finally:
        local.stop()


@pytest.fixture
def run_id() -> str:
    """A run that no other test uses."""
    return f"run-{uuid.uuid4().hex[:12]}"
