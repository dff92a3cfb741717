"""infra/kafka.yml: valid for the real compose binary, and its broker settings run by Apache Kafka itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

import infra
from infra.kafka import check_broker, make_admin
from infra.local.broker import LocalBroker
from infra.local.ports import free_ports
from infra.topics import create_topics
from schemas.process import BrokerSettings

pytestmark = pytest.mark.integration

FILE = Path(infra.__file__).parent / "kafka.yml"
COMPOSE = Path(sys.executable).with_name("docker-compose")
POOLS = {"run", "design", "validate", "rollout", "memory"}


def compose(*arguments: str, file: Path = FILE, password: str | None = "hunter-7") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "CLICKHOUSE_PASSWORD"}
    if password is not None:
        environment["CLICKHOUSE_PASSWORD"] = password
    return subprocess.run(
        [str(COMPOSE), "-f", str(file), *arguments], capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def resolved(*profiles: str) -> dict[str, Any]:
    """The file as compose reads it, with every variable and merge resolved."""
    answer = compose(*[word for profile in profiles for word in ("--profile", profile)], "config", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


def broker_properties(environment: dict[str, str]) -> dict[str, str]:
    """What the image makes of its KAFKA_* variables: lower case, "_" a dot, "__" an underscore, "___" a dash."""
    properties = {}
    for name, value in environment.items():
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS":
            bare = name.removeprefix("KAFKA_").lower()
            bare = re.sub(r"_+", lambda match: {1: ".", 2: "_", 3: "-"}[len(match[0])], bare)
            properties[bare] = str(value)
    return properties


def test_the_file_is_valid_with_and_without_the_pools() -> None:
    answer = compose("config", "-q")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert set(resolved()["services"]) == {"kafka", "topics", "clickhouse", "migrate", "grafana"}
    assert set(resolved("run", "workers")["services"]) - set(resolved()["services"]) == POOLS


def test_an_unset_password_is_refused() -> None:
    answer = compose("config", "-q", password=None)
    assert answer.returncode != 0
    assert "CLICKHOUSE_PASSWORD" in answer.stderr


def test_a_condition_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "kafka.yml"
    broken.write_text(FILE.read_text().replace("condition: service_healthy", "condition: service_feels_well", 1))
    answer = compose("config", "-q", file=broken)
    assert answer.returncode != 0
    assert "condition" in answer.stderr


def test_every_port_is_bound_to_the_loopback_address_and_every_server_has_a_health_check() -> None:
    services = resolved("run", "workers")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    assert {name for name, service in services.items() if "healthcheck" in service} == {"kafka", "clickhouse", "grafana"}


def test_pools_start_behind_topics_and_tables_and_only_jailed_ones_are_unconfined() -> None:
    services = resolved("run", "workers")["services"]
    for name in POOLS:
        waits = {other: how["condition"] for other, how in services[name]["depends_on"].items()}
        assert waits == {"topics": "service_completed_successfully", "migrate": "service_completed_successfully"}
        assert services[name]["environment"]["SPADE_BROKER"] == "kafka:29092"
        assert "hunter-7" not in str(services[name]["environment"])
    assert {name for name, service in services.items() if "security_opt" in service} == {"validate", "rollout"}
    assert not any("privileged" in service or "cap_add" in service for service in services.values())


def test_the_data_stands_in_named_volumes_and_mounted_files_exist() -> None:
    whole = resolved("run", "workers")
    assert set(whole["volumes"]) == {"kafka", "clickhouse", "grafana", "state"}
    mounts = [mount for service in whole["services"].values() for mount in service.get("volumes", [])]
    assert all(Path(mount["source"]).exists() for mount in mounts if mount["type"] == "bind")
    assert Path(whole["services"]["run"]["build"]["context"], whole["services"]["run"]["build"]["dockerfile"]).exists()


def test_apache_kafka_runs_the_brokers_settings(tmp_path: Path) -> None:
    """Only addresses, ports and the folder are changed for this machine."""
    properties = broker_properties(resolved()["services"]["kafka"]["environment"])
    assert properties.pop("log.dirs") == "/var/lib/kafka/data"
    assert properties["listeners"] == "CONTROLLER://:29093,INTERNAL://:29092,HOST://:9092"
    assert properties["advertised.listeners"] == "INTERNAL://kafka:29092,HOST://localhost:9092"
    assert properties["controller.quorum.voters"] == "1@kafka:29093"
    (host_port,) = free_ports(1)
    adapted = properties | {
        "listeners": f"CONTROLLER://127.0.0.1:${{controller_port}},INTERNAL://127.0.0.1:${{port}},HOST://127.0.0.1:{host_port}",
        "advertised.listeners": f"INTERNAL://127.0.0.1:${{port}},HOST://127.0.0.1:{host_port}",
        "controller.quorum.voters": "1@127.0.0.1:${controller_port}",
        "log.dirs": "${log_dir}",
    }
    text = "".join(f"{name}={value}\n" for name, value in adapted.items())
    local = LocalBroker.start(tmp_path, properties=text)
    try:
        settings = BrokerSettings(address=f"127.0.0.1:{host_port}")  # as a client on the host
        assert len(check_broker(settings)["brokers"]) == 1
        assert create_topics(settings)
        admin = make_admin(settings)
        described = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all")["broker"]["1"]
        admin.close()
        taken = {name: str(described[name]["value"]) for name in properties if name in described}
        changed = {"listeners", "advertised.listeners", "controller.quorum.voters"}
        assert {name: value for name, value in taken.items() if name not in changed} == {
            name: value for name, value in properties.items() if name in taken and name not in changed
        }
        assert {"message.max.bytes", "auto.create.topics.enable", "offsets.retention.minutes", "log.retention.ms"} <= set(taken)
    finally:
        local.stop()


def test_the_images_broker_is_the_version_that_runs_here() -> None:
    from infra.local.jars import KAFKA

    assert resolved()["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA}"
