"""Passwords of store and broker stand in no log, page, message or process list; and who listens, listens on loopback only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from infra.cli.app import run_app
from infra.cli.stages import child_environment
from infra.clickhouse import connect
from infra.kafka import make_producer
from infra.local.ports import free_ports
from infra.local.processes import OwnedProcess
from infra.local.store import LocalStore
from schemas.process import BrokerSettings, ProcessContext
from tests.generatedrun import GeneratedRun
from tests.integration.test_prometheus import listening
from tests.processlist import command_lines

pytestmark = pytest.mark.integration

SPADE = [sys.executable, "-P", "-m", "infra.cli"]
SECRET = "hunter-7-and-more"
DEADLINE_S = 240.0
LOOPBACK_ONLY = {"0100007F"}


def shown_by_ps() -> str:
    return "\n".join(command_lines().values())


def spade(*arguments: str, **environment: str) -> str:
    """Everything that a command that fails says."""
    settings = {**os.environ, "SPADE_STATE": "/nonexistent", **environment}
    answer = subprocess.run([*SPADE, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=settings)
    assert answer.returncode != 0
    return answer.stdout + answer.stderr


def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = f"clickhouse://spade:{SECRET}@127.0.0.1:1/spade"
    for command in (["dashboard"], ["migrate"], ["status", "--broker", "127.0.0.1:1"]):
        line = ["spade", *command, "--store", dsn]
        monkeypatch.setattr(sys, "argv", line)
        assert run_app(line[1:]) == 2
        said = capsys.readouterr()
        assert "password_file" in said.err
        assert SECRET not in said.out + said.err


@pytest.mark.parametrize("as_json", ["0", "1"])
def test_a_stores_password_is_in_no_log_of_a_worker_that_can_not_reach_it(
    broker_settings: BrokerSettings, run_id: str, tmp_path: Path, as_json: str
) -> None:
    with make_producer(broker_settings) as producer:
        producer.send_all(GeneratedRun(run_id, 1).pairs[:1])
    (port,) = free_ports(1)
    settings = {
        **os.environ, "SPADE_STORE": f"clickhouse://spade:{SECRET}@127.0.0.1:{port}/spade", "SPADE_LOG_JSON": as_json,
    }  # fmt: skip
    command = [*SPADE, "work", "memory", "--broker", broker_settings.address, "--run", run_id, "--state-dir", str(tmp_path)]
    said = tmp_path / "said"
    with said.open("wb") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=log, env=settings)
    try:
        end = time.monotonic() + DEADLINE_S
        while said.read_text().count(f"127.0.0.1:{port}") < 2:  # it tries for two minutes; twice is enough here
            assert worker.poll() is None, said.read_text()
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.1)
    finally:
        worker.kill()
        worker.wait(30)
    assert SECRET not in said.read_text()


def test_a_refused_store_password_is_not_repeated(store: LocalStore, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    told = spade("migrate", "--store", f"clickhouse://spade@127.0.0.1:{store.port}/spade?password_file={file}")
    assert "refuses user spade's password" in told
    assert SECRET not in told


def test_a_brokers_password_is_in_no_message_and_not_in_what_children_are_told(
    broker_settings: BrokerSettings, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    settings = BrokerSettings(
        address=broker_settings.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        username="spade",
        password_file=str(tmp_path / "secret"),
        timeout_s=5,
    )
    context = ProcessContext(broker=settings, store_dsn="clickhouse://spade@h:1/spade?password_file=f", state_dir=str(tmp_path))
    environment = child_environment(context)
    written = (tmp_path / "broker.toml").read_text()
    assert str(tmp_path / "secret") in written
    assert SECRET not in written + str(environment)
    told = spade("topics", "--broker", environment["SPADE_BROKER"])
    assert "can't reach broker" in told
    assert SECRET not in told


def test_the_dashboard_shows_the_stores_token_nowhere_and_listens_on_the_loopback_address_only(
    store: LocalStore, run_id: str, tmp_path: Path
) -> None:
    client = connect(store.dsn)
    GeneratedRun(run_id, 1).fill(client)
    client.close()
    token = store.token_file.read_text().strip()
    (port,) = free_ports(1)
    log = tmp_path / "log"
    process = OwnedProcess.start([*SPADE, "dashboard", "--store", store.dsn, "--port", str(port)], log)
    try:
        pages = [await_page(f"http://127.0.0.1:{port}/", process, log)]
        pages += [
            read(f"http://127.0.0.1:{port}{path}")
            for path in (
                "/api/runs",
                f"/api/charts?run={run_id}",
                "/api/environment?env=nothing",
                "/api/lag",
                "/page/dashboard.js",
            )
        ]
        assert all(token not in page for page in pages)
        assert str(store.token_file) not in "".join(pages)
        assert listening(port) == LOOPBACK_ONLY
        assert token not in shown_by_ps()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30.0)
        assert process.exit_code == 0
    finally:
        process.kill()
    said = log.read_text()
    assert "the dashboard has ended" in said
    assert token not in said


def await_page(address: str, process: OwnedProcess, log: Path) -> str:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        assert process.alive(), log.read_text()
        try:
            return read(address)
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} did not answer: {log.read_text()}")


def read(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as problem:
        return problem.read().decode()


def test_store_and_broker_listen_on_the_loopback_address_only(store: LocalStore, broker_settings: BrokerSettings) -> None:
    for port in (store.port, int(broker_settings.address.rpartition(":")[2])):
        # Java writes IPv4 addresses as IPv6 ones
        assert listening(port) <= LOOPBACK_ONLY | {"0000000000000000FFFF00000100007F"}
        assert listening(port)
    assert store.token_file.stat().st_mode & 0o077 == 0
    assert store.token_file.read_text().strip() not in shown_by_ps()
