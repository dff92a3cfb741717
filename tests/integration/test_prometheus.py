"""Alert rules by promtool and by a real Prometheus over a real process; and which port each process serves its metrics on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

import infra
from infra.local.ports import free_ports
from infra.local.processes import OwnedProcess
from infra.metricports import RANGES
from infra.telemetry import METRICS
from tests.programs import find_program

pytestmark = pytest.mark.integration

FOLDER = Path(infra.__file__).parent / "prometheus"
DEADLINE_S = 120.0
# A process of ours as far as metrics go: the project's own telemetry, at a port of its kind or a given one.
PROCESS = """
import sys, time
from infra import metricports, telemetry
telemetry.setup_logging("test")
kind, port = sys.argv[1], int(sys.argv[2])
telemetry.set_gauge("spade_effective_sample_share", 0.1, role="agent")
telemetry.set_gauge("spade_effective_sample_share", 0.9, role="designer")
telemetry.set_gauge("spade_policy_lag", 5, role="agent")
telemetry.set_gauge("spade_policy_lag_limit", 1, role="agent")
telemetry.set_gauge("spade_regret", -0.3)
telemetry.set_gauge("spade_regret_error", 0.1)
telemetry.set_gauge("spade_diversity_share", 0.8)
telemetry.set_gauge("spade_open_groups", 2, stage="score")
telemetry.count("spade_records_in_total", 7, topic="spade-env-proposed")
telemetry.count("spade_steps_total", 1, outcome="applied")
print("PORT", metricports.serve(kind, port, "run-1"), flush=True)
time.sleep(240)
"""


def promtool(*arguments: str) -> str:
    answer = subprocess.run(
        [find_program("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=FOLDER
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def start(kind: str, port: int, log: Path) -> tuple[OwnedProcess, int]:
    """A process with metrics, and the port that it says it serves them on."""
    process = OwnedProcess.start([sys.executable, "-P", "-c", PROCESS, kind, str(port)], log)
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        told = re.search(r"^PORT (\d+)$", log.read_text(), re.MULTILINE) if log.exists() else None
        if told:
            return process, int(told[1])
        assert process.alive(), log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{kind} told no port: {log.read_text()}")


@pytest.fixture
def processes() -> Iterator[list[OwnedProcess]]:
    started: list[OwnedProcess] = []
    yield started
    for process in started:
        process.kill()


def test_promtool_accepts_configuration_and_rules_and_their_own_tests_pass() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


def test_every_alert_asks_for_metrics_of_the_table_and_has_a_test_of_its_own() -> None:
    rules = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    asked = {name for rule in rules for name in re.findall(r"\bspade_\w+", rule["expr"])}
    assert asked <= set(METRICS)
    tested = {one["alertname"] for test in yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
              for one in test["alert_rule_test"]}  # fmt: skip
    assert tested == {rule["alert"] for rule in rules}
    assert all({"summary", "fix"} == set(rule["annotations"]) for rule in rules)


def test_prometheus_scrapes_every_port_that_a_process_may_have_and_no_other_address() -> None:
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    found = {job["job_name"]: [target for one in job["static_configs"] for target in one["targets"]] for job in jobs}
    assert found == {kind: [f"127.0.0.1:{port}" for port in ports] for kind, ports in RANGES.items()}
    every = [port for ports in RANGES.values() for port in ports]
    assert len(set(every)) == len(every)


def test_a_real_prometheus_fires_the_alerts_of_a_process_that_is_ill(tmp_path: Path, processes: list[OwnedProcess]) -> None:
    """The shipped rules, with their waits and windows cut to seconds."""
    own_port, port = free_ports(2)
    process, served = start("train", own_port, tmp_path / "process.log")
    processes.append(process)
    assert served == own_port
    rules = re.sub(r"for: \d+m", "for: 1s", (FOLDER / "alerts.yml").read_text())
    (tmp_path / "alerts.yml").write_text(re.sub(r"\[\d+[mh]\]", "[5s]", rules))
    target = {"targets": [f"127.0.0.1:{own_port}"]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "train", "static_configs": [target]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command = [
        find_program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
    ]
    processes.append(OwnedProcess.start([*command, f"--web.listen-address=127.0.0.1:{port}"], tmp_path / "prometheus.log"))
    expected = {
        ("SpadeLowEffectiveSampleSize", "agent"),
        ("SpadeStaleSamples", "agent"),
        ("SpadeRegretStaysNegative", ""),
        ("SpadeTrainerStandsStill", ""),
        ("SpadeStageStandsStill", ""),
    }
    fired = await_alerts(port, expected)
    assert fired == expected, (tmp_path / "prometheus.log").read_text()[-2000:]


def await_alerts(port: int, expected: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The alerts that fire, as (name, role), once the expected ones are among them or the deadline is over."""
    end = time.monotonic() + DEADLINE_S
    fired: set[tuple[str, str]] = set()
    while time.monotonic() < end and not expected <= fired:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=5) as answer:
                alerts: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
        except (urllib.error.URLError, OSError):
            alerts = []
        fired = {(one["labels"]["alertname"], one["labels"].get("role", "")) for one in alerts if one["state"] == "firing"}
        time.sleep(0.2)
    return fired


def test_processes_of_a_kind_take_the_next_port_and_listen_on_the_loopback_address_only(
    tmp_path: Path, processes: list[OwnedProcess]
) -> None:
    ports = []
    for number in range(2):
        process, port = start("work-rollout", -1, tmp_path / f"{number}.log")
        processes.append(process)
        ports.append(port)
    assert ports[0] != ports[1]
    assert set(ports) <= set(RANGES["work-rollout"])
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'spade_process_info{process="work-rollout",run="run-1"} 1.0' in text
        assert listening(port) == {"0100007F"}


def listening(port: int) -> set[str]:
    """Addresses, as the kernel writes them, on which somebody listens at this port."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
