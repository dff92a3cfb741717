"""The local broker is Kafka itself: durable under kill -9, honest about ports and folders, gone when its owner is gone."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli.services import Services, outlast
from infra.kafka import ControlReader, check_broker, fetch, make_producer
from infra.local import broker as broker_module
from infra.local import startcache
from infra.local.broker import LocalBroker, ensure_start_cache
from infra.local.jars import ensure_jars
from infra.local.processes import born_at
from infra.topics import create_topics
from schemas.errors import BrokerError, DiskFullError, PortInUseError
from schemas.process import BrokerSettings
from schemas.run import RunEnding
from schemas.topics import Topic

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker that this module may kill."""
    local = LocalBroker.start(tmp_path_factory.mktemp("own"))
    yield local
    local.stop()


def ending(number: int) -> RunEnding:
    return RunEnding(run_id="r", event_id=f"e{number}", last_generation=number, cause="")


def test_no_acknowledged_record_is_lost_or_doubled_by_kill_9(own_broker: LocalBroker) -> None:
    settings = BrokerSettings(address=own_broker.address)
    create_topics(settings)
    producer = make_producer(settings)
    references = producer.send_all([(Topic.RUN_ENDING, ending(number)) for number in range(200)])
    killed = own_broker.pid
    own_broker.kill()
    underway = [producer.send(Topic.RUN_ENDING, ending(number)) for number in range(200, 250)]  # while it is away
    own_broker.restart()
    assert own_broker.pid != killed
    references += [sent.result() for sent in underway]
    producer.close()
    with ControlReader(settings, [Topic.RUN_ENDING], "r") as reader:
        numbers = [record.last_generation for _, _, _, record in reader.catch_up() if isinstance(record, RunEnding)]
    assert numbers == list(range(250))
    assert len(fetch(settings, references)) == 250


def test_what_a_run_does_before_it_is_supervised_outlasts_a_broker_that_dies_under_it(own_broker: LocalBroker) -> None:
    settings = BrokerSettings(address=own_broker.address, timeout_s=2)
    where, said, tries = Services(settings, "", (("broker", own_broker),)), [], []  # type: ignore[var-annotated]

    def make() -> str:
        tries.append(own_broker.pid)
        if len(tries) == 1:
            own_broker.kill()
        create_topics(settings)
        return "made"

    assert outlast(where, 1, said.append, make) == "made"
    assert len(set(tries)) == len(tries) == 2
    assert [line.split(";")[0] for line in said] == ["the broker was ended by SIGKILL", "the broker is up again"]

    def fail() -> None:
        tries.append(0)
        raise BrokerError("another broker is away", "start it")

    with pytest.raises(BrokerError, match="another"):
        outlast(where, 1, said.append, fail)
    assert tries.count(0) == 1


def test_a_second_broker_on_the_same_folder_is_refused(own_broker: LocalBroker) -> None:
    with pytest.raises(BrokerError, match=f"process {own_broker.pid}.*already serves"):
        LocalBroker.start(own_broker.data_dir)
    found = LocalBroker.attach(own_broker.data_dir)
    assert found is not None
    assert found.address == own_broker.address


def test_a_folder_may_have_any_name_and_all_that_is_kept_lies_in_it(tmp_path: Path) -> None:
    home = tmp_path / "j\u00fcrgen, R&D \\ 50%"
    local = LocalBroker.start(home)
    try:
        settings = BrokerSettings(address=local.address)
        create_topics(settings)
        local.kill()
        local.restart()
        check_broker(settings)
    finally:
        local.stop()
    assert {path.name for path in tmp_path.iterdir()} == {home.name}
    assert (home / "log" / "meta.properties").exists()


def test_a_port_in_use_is_named_with_its_number(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is taken, the broker"):
            LocalBroker.start(tmp_path, port=port)


def test_properties_that_kafka_refuses_end_in_its_own_last_words(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"can't format .*process.roles"):
        LocalBroker.start(tmp_path, properties="node.id=1\nprocess.roles=juggler\n")


def test_a_full_disk_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 1))
    with pytest.raises(DiskFullError, match=r"0 MiB free, the broker needs 256"):
        LocalBroker.start(tmp_path)


def test_a_broker_that_is_not_there_is_named_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(BrokerError, match=f"can't reach broker 127.0.0.1:{port}.*spade up"):
        check_broker(BrokerSettings(address=f"127.0.0.1:{port}"), timeout_s=1)


def test_an_unready_broker_is_given_up_at_the_deadline_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "READY", b"words that Kafka never prints")
    monkeypatch.setattr(broker_module, "READY_LIMIT_S", 4.0)
    with pytest.raises(BrokerError, match=r"was not ready after 4 s; its log ends: .*The whole log is"):
        LocalBroker.start(tmp_path)
    assert LocalBroker.attach(tmp_path) is None


def test_the_broker_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from infra.local.broker import LocalBroker\n"
        f"broker = LocalBroker.start(pathlib.Path({str(tmp_path)!r}))\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(120)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert born_at(pid)
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    end = time.monotonic() + 10
    while born_at(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not born_at(pid)


def test_a_detached_broker_whose_starter_is_killed_while_it_starts_is_found_again(tmp_path: Path) -> None:
    start = "LocalBroker.start(Path(sys.argv[1]), detached=True)"
    code = f"import sys; from pathlib import Path; from infra.local.broker import LocalBroker; {start}"
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    noted = tmp_path / "broker.json"
    end = time.monotonic() + 120
    while not noted.exists() and starter.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    starter.kill()
    starter.wait()
    found = LocalBroker.attach(tmp_path)
    assert found is not None
    pid = found.pid
    assert born_at(pid)
    found.stop()
    assert not born_at(pid)
    assert LocalBroker.attach(tmp_path) is None


def test_a_start_uses_the_cache_that_was_made_for_it_and_does_without_one_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = ensure_jars()
    made = ensure_start_cache(lambda _: None)  # of `make install`, where the broker was shown something to do
    assert startcache.find(jars, broker_module.JVM_OPTIONS) == made
    assert startcache.find(jars, ["-Xmx1g", *broker_module.JVM_OPTIONS]) is None

    def start(cache: Path) -> list[str]:
        monkeypatch.setattr(startcache, "find", lambda *_: cache)
        local = LocalBroker.start(tmp_path / cache.stem)
        try:
            assert f"-XX:AOTCache={cache}" in Path(f"/proc/{local.pid}/cmdline").read_text().split("\0")
            return [line for line in Path(f"/proc/{local.pid}/maps").read_text().splitlines() if line.endswith(cache.suffix)]
        finally:
            local.stop()

    assert start(made)
    broken = tmp_path / "broken.aot"
    broken.write_bytes(made.read_bytes()[: 2**20])
    assert not start(broken)
