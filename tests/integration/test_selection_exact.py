"""What memory ranks is what its rules say of the stored rows: held against a plain reckoning of made-up runs, with copies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.clickhouse import ClickHouseStore, connect, parse_dsn
from infra.local.store import LocalStore
from infra.memory import rank_candidates
from infra.ranking import DRAWN, NEWEST
from infra.selection import BEST, EASY, HARD, REPEATED
from schemas.recipes import build_recipe
from schemas.settings import MemorySettings

pytestmark = pytest.mark.integration

GENERATIONS, SLOTS, SKILLS = 60, 8, ("s", "t")
PLAIN = MemorySettings(diversity="none")
RULES = {
    "mended": PLAIN,
    "published": build_recipe({"algorithm": "published"}).memory,
    "many": PLAIN.model_copy(update={"top": 40, "age_out": 0, "negatives": ("easy", "hard", "repeated", "repeated", "repeated")}),
    "by reward": PLAIN.model_copy(update={"priority": "reward", "lcb_errors": 2.0}),
    "by the mean": PLAIN.model_copy(update={"lcb_errors": 0.0, "top": 30}),
    "few generations": PLAIN.model_copy(update={"generations": 9, "top": 30}),
    "a small window": PLAIN.model_copy(update={"window": 25, "top": 30}),
    "ranges that overlap": PLAIN.model_copy(update={"frontier": (0.0, 1.0), "negative": (0.6, 0.4), "top": 30}),
    "an empty frontier": PLAIN.model_copy(update={"frontier": (0.51, 0.52), "negative": (0.0, 1.0)}),
}


@dataclass
class MadeUp:
    """A run's rows as they count, each once."""

    standings: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[dict[str, Any]] = field(default_factory=list)
    generations: list[dict[str, Any]] = field(default_factory=list)


def _make(run_id: str, seed: int) -> MadeUp:
    draw = random.Random(seed)
    made = MadeUp()
    known: list[dict[str, Any]] = []

    def stand(env: dict[str, Any], measured: int, evicted: str) -> dict[str, Any]:
        return {
            **env, "measured": measured, "win_rate": draw.randrange(9) / 8, "regret": draw.randrange(-3, 5) / 8,
            "regret_se": draw.choice((0.0, 0.05, 0.25)), "pairs": draw.choice((0, 1, 2, 8, 8, 8)),
            "reward": draw.randrange(5) / 4, "evicted": evicted,
        }  # fmt: skip

    for generation in range(GENERATIONS):
        for slot in range(SLOTS):
            env: dict[str, Any] = {
                "run_id": run_id, "env_id": f"{draw.getrandbits(64):016x}", "skill": draw.choice(SKILLS),
                "generation": generation, "slot": slot,
            }  # fmt: skip
            row = stand(env, generation, "audit" if draw.random() < 0.05 else "")
            valid = draw.random() < 0.9
            left_out = ("measured", "pairs")
            made.rewards.append({**{key: row[key] for key in row if key not in left_out}, "valid": valid})
            if valid:
                made.standings.append(row)
                known.append(env)
        for env in draw.sample(known, min(4, len(known))):
            if env["generation"] < generation:
                made.standings.append(stand(env, generation, "audit" if draw.random() < 0.1 else ""))
        repeated = {env["env_id"]: draw.randrange(1, 4) for env in draw.sample(known, min(3, len(known)))}
        made.generations.append({"run_id": run_id, "generation": generation, "repeated": repeated})
    return made


def _put(client: ClickHouseStore, table: str, rows: list[dict[str, Any]], seed: int) -> None:
    """In three blocks, each of which holds copies of rows of the others, some of them again and again."""
    draw = random.Random(seed)
    blocks: list[list[dict[str, Any]]] = [[], [], []]
    for place, row in enumerate(rows):
        own = {**row, "_offset": place, "_version": 2**64 - 1 - place}
        for copy in range(draw.choice((1, 1, 1, 1, 2, 9))):
            version = 2**64 - 1 - place - copy * len(rows)
            blocks[draw.randrange(3)].append({**own, "_offset": place + copy * len(rows), "_version": version})
    columns = list(blocks[0][0])
    for number, block in enumerate(blocks):
        client.insert(table, columns, [[row[name] for name in columns] for row in block], token=f"{rows[0]['run_id']}-{number}")


def _reckon(made: MadeUp, upto: int, skill: str, rule: MemorySettings) -> list[tuple[Any, ...]]:
    """(kind, env_id, generation, win rate, regret, measured) as docs/ARCHITECTURE.md says them, best first."""
    seen = [row for row in made.rewards if row["generation"] <= upto and row["valid"] and not row["evicted"]]
    newest = sorted({(row["generation"], row["slot"]) for row in seen}, reverse=True)[: rule.window]
    since = upto - rule.generations + 1 if rule.generations else 0
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(made.standings, key=lambda row: row["measured"]):
        place = (row["generation"], row["slot"])
        if row["skill"] == skill and row["measured"] <= upto and place[0] >= since and (not rule.window or place in newest):
            last[row["env_id"]] = row
    stand = [row for row in last.values() if not row["evicted"]]
    aged = upto - rule.age_out if rule.age_out else -1

    def bound(row: dict[str, Any]) -> float:
        if rule.priority == "reward":
            return float(row["reward"])
        if row["pairs"] >= 2 or not rule.lcb_errors:
            return float(row["regret"] - rule.lcb_errors * row["regret_se"])
        return min(0.0, float(row["regret"]))

    best = [row for row in stand if rule.frontier[0] <= row["win_rate"] <= rule.frontier[1]]
    best.sort(key=lambda row: (-bound(row), row["env_id"]))
    most = max(DRAWN, rule.window)
    easy = [row for row in stand if row["win_rate"] > rule.negative[1] and row["generation"] > aged]
    hard = [row for row in stand if row["win_rate"] < rule.negative[0]]
    for negatives in (easy, hard):
        negatives.sort(key=lambda row: (-row["generation"], row["env_id"]))
    times: Counter[str] = Counter()
    for row in made.generations:
        if aged < row["generation"] <= upto:
            times.update(row["repeated"])
    repeated = sorted((row for row in stand if times[row["env_id"]]), key=lambda row: (-times[row["env_id"]], row["env_id"]))
    kinds = {
        BEST: best[: rule.top + len(rule.negatives)], EASY: easy[:most], HARD: hard[:most],
        REPEATED: repeated[: rule.negatives.count("repeated")],
    }  # fmt: skip
    names = ("env_id", "generation", "win_rate", "regret", "measured")
    return [(kind, *(row[name] for name in names)) for kind, rows in kinds.items() for row in rows]


@pytest.fixture
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


async def _rank(dsn: str, run_id: str, asked: list[tuple[str, int, str]]) -> list[list[tuple[Any, ...]]]:
    store = ClickHouseStore(parse_dsn(dsn))
    try:
        found = [await rank_candidates(store, run_id, upto, skill, RULES[rule]) for rule, upto, skill in asked]
    finally:
        await store.aclose()
    return [[(one.kind, one.env_id, one.generation, one.win_rate, one.regret, one.measured) for one in own] for own in found]


@pytest.mark.parametrize(("seed", "newest"), [(1, NEWEST), (2, 40), (3, 150)], ids=["all are new", "few are new", "some are new"])
def test_a_ranking_is_what_the_rules_say_of_the_rows_before_and_after_copies_are_merged(
    store: LocalStore, client: ClickHouseStore, run_id: str, monkeypatch: pytest.MonkeyPatch, seed: int, newest: int
) -> None:
    monkeypatch.setattr("infra.ranking.NEWEST", newest)
    made = _make(run_id, seed)
    for table in ("standings", "rewards", "generations"):
        _put(client, table, getattr(made, table), seed)
    asked = [(rule, upto, skill) for rule in RULES for upto, skill in ((GENERATIONS - 1, "s"), (GENERATIONS // 2, "t"), (0, "s"))]
    expected = {one: _reckon(made, one[1], one[2], RULES[one[0]]) for one in asked}
    assert sum(len(own) for own in expected.values()) > 500
    again = asked[::-1]  # by what other questions have left behind
    for order in (asked, again):
        assert dict(zip(order, asyncio.run(_rank(store.dsn, run_id, order)), strict=True)) == expected
    for table in ("standings", "rewards", "generations"):
        client.command(f"OPTIMIZE TABLE {table} FINAL")
    assert dict(zip(asked, asyncio.run(_rank(store.dsn, run_id, asked)), strict=True)) == expected
