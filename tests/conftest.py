"""One real broker and one real store for the whole test session, on free ports in temporary folders, ended by process id."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.migrate import migrate
from infra.topics import create_topics
from schemas.common import Record
from schemas.process import BrokerSettings
from schemas.topics import Topic
from tests import samplerkinds
from tests.tinyrun import TinyRun, make_tiny_run

LONG_RUNS = (  # whole runs and trainings, which take all cores: one after another, beside all other tests
    "test_kill_each_kind",
    "test_end_to_end",
    "test_ablation_run",  # of the same run as the two before it
    "test_one_by_one",
    "test_smollm2",
    "test_outages",
    "test_free_run",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--samplers",
        default="transformers",
        help="the real samplers that keep the samplers' contract, by comma: transformers, vllm (`make test-vllm`)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Reasoned exceptions to "warnings are errors"; and no test of chosen examples fails because the machine is busy."""
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    samplerkinds.HEAD_SIZE = 32 if "vllm" in config.getoption("--samplers") else 16
    # kafka-python leaves the sockets of refused connection attempts to the garbage collector: seen while a test's broker is down
    config.addinivalue_line(
        "filterwarnings", r"ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
    )


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """What one worker of pytest-xdist runs together: a file, and LONG_RUNS."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "long runs" if Path(file).stem in LONG_RUNS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Who shares the tests out."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """LONG_RUNS come first, in their order."""
    items.sort(key=lambda item: LONG_RUNS.index(item.path.stem) if item.path.stem in LONG_RUNS else len(LONG_RUNS))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A finished run of the recipe `tiny`. Shared: whoever starts its broker or store again ends them."""
    return make_tiny_run(tmp_path_factory.mktemp("tiny"))


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


@pytest.fixture
def one_of_each() -> Callable[[str], list[tuple[Topic, Record]]]:
    """A record of every topic for a run, every field filled by its type, also fields that are added later."""
    return lambda run: [(topic, filled(topic.record, run_id=run, event_id=f"{topic.wire}-1", created_at=1.5)) for topic in Topic]


def filled(kind: Any, name: str = "", **given: Any) -> Any:
    """A value of a record's field type that is not its default."""
    if get_origin(kind) is list:
        return [filled(get_args(kind)[0], name)]
    if get_origin(kind) is dict:
        return {"agent": filled(get_args(kind)[1], name)}
    if type(None) in get_args(kind):
        return filled(get_args(kind)[0], name)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        own: dict[str, Any] = {"schema_version": 1, "role": "agent", "arm": "plain"}
        values = {field: filled(hints[field], field) for field in kind.__struct_fields__}
        return kind(**(values | {key: value for key, value in (own | given).items() if key in values}))
    return {str: name, int: 3, float: 0.25, bool: True, bytes: bytes(8)}[kind]
