"""The memory's answers among a million environments: a selection, the dashboard's table, the story of one environment.

In: nothing; a store of its own in a temporary folder, filled by the engine itself (memory.sql). Out: rows of the table. Each
question goes over HTTP to the embedded engine, as in a run; median and slowest of ROUNDS are told.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from infra.clickhouse import ClickHouseStore, connect, parse_dsn
from infra.dashboards.panels import ask, load_panels
from infra.lineage import read_lineage
from infra.local.store import LocalStore
from infra.memory import select_memory
from infra.migrate import migrate
from schemas.recipes import build_recipe
from schemas.settings import GAMES_SKILLS, MemorySettings
from tests.bench.table import Row

ENVIRONMENTS = 1_000_000
A_GENERATION = 24
ROUNDS = 15
TARGET_MS = 100.0
SETTLE_S = 120.0
RUN = "bench"
ROWS = Path(__file__).with_suffix(".sql")
Seconds = dict[str, list[float]]


def measure(tell: Callable[[str], None], environments: int = ENVIRONMENTS, rounds: int = ROUNDS) -> Seconds:
    """Seconds by question. Blocks for minutes; several gigabytes in the temporary folder."""
    with tempfile.TemporaryDirectory(prefix="spade-bench-") as name:
        local = LocalStore.start(Path(name) / "store")
        try:
            migrate(local.dsn)
            store = connect(local.dsn, timeout_s=600)
            for statement in ROWS.read_text().replace("ENVIRONMENTS", str(environments)).split(";\n"):
                if statement.strip():
                    tell(" ".join(statement.split("\n", 3)[:3]))
                    store.command(statement)
            _settle(store, tell)
            return asyncio.run(_ask(store, local.dsn, environments // A_GENERATION - 1, rounds))
        finally:
            local.stop()


def _settle(store: ClickHouseStore, tell: Callable[[str], None]) -> None:
    """Waits until the engine has merged what was filled in at once: a run's rows come over hours, and its merges are small."""
    end = time.monotonic() + SETTLE_S
    while merges := store.query("SELECT count() AS merges FROM system.merges")[0]["merges"]:
        if time.monotonic() > end:
            tell(f"{merges} merges still go on after {SETTLE_S:.0f} s")
            return
        time.sleep(0.5)


async def _ask(store: ClickHouseStore, dsn: str, newest: int, rounds: int) -> Seconds:
    found: Seconds = {}
    selecting = ClickHouseStore(parse_dsn(dsn))
    rules = {"mended": MemorySettings(), "published": build_recipe({"algorithm": "published"}).memory}
    panel = load_panels()["environments"]
    where = {"run": RUN, "generation": newest // 2}
    sql = "SELECT env_id FROM prompts WHERE run_id = {run:String} AND generation = {generation:Int32} LIMIT 1"
    env_id = str(store.query(sql, where)[0]["env_id"])

    def note(what: str, began: float) -> None:
        found.setdefault(what, []).append(time.perf_counter() - began)

    for number in range(rounds + 1):  # the first warms up
        for rule, settings in rules.items():
            began = time.perf_counter()
            lines = await select_memory(selecting, RUN, newest, GAMES_SKILLS[number % 6], settings, f"{number}")
            note(f"selection, {rule}", began)
            assert len(lines) >= 3, lines
        for what, search in (("newest", ""), ("searched", env_id[:13])):
            began = time.perf_counter()
            assert ask(store, panel, {"run": RUN, "search": search, "limit": 500})
            note(f"dashboard's environments, {what}", began)
        for what, wanted in (("by id", env_id), ("by an id's beginning", env_id[:13])):
            began = time.perf_counter()
            assert read_lineage(store, wanted, RUN).env_id == env_id
            note(f"spade why, {what}", began)
    await selecting.aclose()
    store.close()
    return {what: seconds[1:] for what, seconds in found.items()}


def memory_rows(found: Seconds, environments: int = ENVIRONMENTS) -> list[Row]:
    """The lines of the table."""
    rows = []
    for what, seconds in found.items():
        target = TARGET_MS if what.startswith("selection") else float("nan")
        told = f"memory of {environments:,}: {what}"
        rows.append(Row(f"{told}, median", median(seconds) * 1e3, target, "ms"))
        rows.append(Row(f"{told}, slowest of {len(seconds)}", max(seconds) * 1e3, target, "ms"))
    return rows
