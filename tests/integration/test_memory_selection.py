"""Selection on the real embedded engine: known rows, expected choices, with ties, repeats, age-out and the published rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.clickhouse import ClickHouseStore, connect, parse_dsn
from infra.local.store import LocalStore
from infra.memory import rank_candidates, select_memory
from infra.selection import Candidate
from schemas.common import Record, Reference
from schemas.design import EnvValidated, MemoryLine
from schemas.errors import StageTimeoutError
from schemas.recipes import build_recipe
from schemas.score import GenerationClosed, ProbedEnvironment, ScoredDesign
from schemas.settings import MemorySettings
from schemas.topics import Topic
from tests.bench.memory import measure, memory_rows
from workers.memory_rows import blocks_of, rows_of

pytestmark = pytest.mark.integration

PLACE = Reference(topic="t", partition=0, offset=0, id="x")
PAPER = build_recipe({"algorithm": "published"}).memory
ALL = MemorySettings(negatives=(), seeds=50, top=50, diversity="none", lcb_errors=1.0)


@dataclass
class Remembered:
    """A run's closed generations as the memory sink stores them."""

    store: LocalStore
    client: ClickHouseStore
    run_id: str
    offsets: dict[Topic, int] = field(default_factory=dict)

    def close(self, generation: int, designs: Sequence[dict[str, Any]], *, texts: bool = True, **summary: Any) -> None:
        """Stores the generation's verdicts and its closing; of each design what differs from a frontier one of regret .1."""
        scored = [_scored(slot, one) for slot, one in enumerate(designs)]
        if texts:
            self.put(Topic.ENV_VALIDATED, [_validated(self.run_id, generation, one) for one in scored])
        closed = GenerationClosed(
            run_id=self.run_id, event_id=f"g{generation}", generation=generation, designs=scored, proposed=1, valid=1,
            rejected_by_rule={}, missing=0, duplicates=0, win_rate=0.5, hint_win_rate=0.5, regret=0.1, regret_se=0.1,
            designer_reward=0.5, repeats=0.0, vendi=1.0, lost=0, **summary,
        )  # fmt: skip
        self.put(Topic.GENERATION_CLOSED, [closed])

    def put(self, topic: Topic, records: Sequence[Record]) -> None:
        first = self.offsets.get(topic, 0)
        rows = [row for place, record in enumerate(records) for row in rows_of(topic, record, 0, first + place)]
        self.offsets[topic] = first + len(records)
        for block in blocks_of(self.run_id, topic, 0, first, first + len(records) - 1, rows):
            self.client.insert(block.table, block.columns, block.values, token=block.token)

    def ranked(
        self, upto: int, settings: MemorySettings, skill: str = "s", blocked: frozenset[str] = frozenset()
    ) -> list[Candidate]:
        return asyncio.run(self._ask(upto, settings, skill, blocked))

    def lines(self, upto: int, settings: MemorySettings, draw: str = "d") -> list[MemoryLine]:
        async def ask() -> list[MemoryLine]:
            store = ClickHouseStore(parse_dsn(self.store.dsn))
            try:
                return await select_memory(store, self.run_id, upto, "s", settings, draw)
            finally:
                await store.aclose()

        return asyncio.run(ask())

    async def _ask(self, upto: int, settings: MemorySettings, skill: str, blocked: frozenset[str]) -> list[Candidate]:
        store = ClickHouseStore(parse_dsn(self.store.dsn))
        try:
            return await rank_candidates(store, self.run_id, upto, skill, settings, blocked)
        finally:
            await store.aclose()


def _scored(slot: int, one: dict[str, Any]) -> ScoredDesign:
    values: dict[str, Any] = {
        "slot": slot, "design_attempt": 0, "skill": "s", "document_id": "", "group": "g", "proposal": PLACE, "valid": True,
        "w": 0.5, "win_rate": 0.5, "hint_win_rate": 0.6, "regret": 0.1, "regret_se": 0.0, "reward": 0.5, "advantage": 0.0,
        "trained": True, "pairs": 8,
    }  # fmt: skip
    return ScoredDesign(**(values | one))


def _probed(env_id: str, slot: int, **changes: Any) -> ProbedEnvironment:
    values: dict[str, Any] = {
        "env_id": env_id, "generation": 0, "slot": slot, "skill": "s", "plays": 16, "lost": 0, "w": 0.5, "win_rate": 0.5,
        "hint_win_rate": 0.6, "regret": 0.1, "regret_se": 0.0, "pairs": 8, "reward": 0.5,
    }  # fmt: skip
    return ProbedEnvironment(**(values | changes))


def _validated(run_id: str, generation: int, one: ScoredDesign) -> EnvValidated:
    return EnvValidated(
        run_id=run_id, event_id=f"v-{one.env_id}", env_id=one.env_id, generation=generation, slot=one.slot, design_attempt=0,
        skill=one.skill, document_id="", group="g", source=f"source of {one.env_id}", full_source="",
        hint=f"hint of {one.env_id}", proposal=PLACE, source_digest="", proof=[],
        signature=[ord(letter) for letter in one.env_id[:1] * 8], witness_min_return=1.0, witness_mean_return=1.0, reward_min=0.0,
    )  # fmt: skip


@pytest.fixture
def memory(store: LocalStore, run_id: str) -> Iterator[Remembered]:
    client = connect(store.dsn)
    yield Remembered(store, client, run_id)
    client.close()


def ids(candidates: Sequence[Candidate], kind: str = "best") -> list[str]:
    return [one.env_id for one in candidates if one.kind == kind]


def test_seeds_rank_by_the_lower_bound_of_regret_with_ties_by_id_and_stay_in_the_frontier(memory: Remembered) -> None:
    memory.close(0, [
        {"env_id": "noisy", "regret": 0.5, "regret_se": 0.375},
        {"env_id": "sure", "regret": 0.3, "regret_se": 0.05},
        {"env_id": "tie-b", "regret": 0.2}, {"env_id": "tie-a", "regret": 0.2},
        {"env_id": "one-pair", "regret": 0.9, "pairs": 1},
        {"env_id": "low-end", "win_rate": 0.15}, {"env_id": "high-end", "win_rate": 0.85, "regret": 0.05},
        {"env_id": "beyond", "win_rate": 0.86, "regret": 0.9}, {"env_id": "evicted", "regret": 0.9, "evicted": "audit"},
        {"env_id": "refused", "valid": False}, {"env_id": "other", "skill": "t", "regret": 0.9},
    ])  # fmt: skip
    assert ids(memory.ranked(0, ALL)) == ["sure", "tie-a", "tie-b", "noisy", "low-end", "high-end", "one-pair"]
    by_mean = ALL.model_copy(update={"lcb_errors": 0.0})
    assert ids(memory.ranked(0, by_mean))[:3] == ["one-pair", "noisy", "sure"]
    assert ids(memory.ranked(0, ALL, skill="t")) == ["other"]
    assert ids(memory.ranked(0, ALL.model_copy(update={"priority": "reward"}))) == sorted(
        ["sure", "tie-a", "tie-b", "noisy", "low-end", "high-end", "one-pair"]
    )


def test_in_the_place_of_blocked_environments_stand_the_next_best(memory: Remembered) -> None:
    memory.close(0, [{"env_id": f"e{number:02d}", "regret": 1 - number / 50} for number in range(40)])
    memory.close(1, [{"env_id": "easy", "win_rate": 0.95}], repeated={"e00": 3, "e01": 2})
    few = MemorySettings(top=3, negatives=("easy", "repeated"))
    blocked = frozenset(f"e{number:02d}" for number in range(0, 20, 2))
    assert ids(memory.ranked(1, few))[:3] == ["e00", "e01", "e02"]
    found = memory.ranked(1, few, blocked=blocked)
    assert ids(found)[:3] == ["e01", "e03", "e05"]
    assert all(one.signature for one in found if one.env_id in ("e01", "e03", "e05"))
    assert ids(found, "repeated") == []  # e00 was the most repeated
    assert ids(memory.ranked(1, few, blocked=blocked | {"easy"}), "easy") == []
    assert memory.ranked(1, few, blocked=frozenset({"unknown"})) == memory.ranked(1, few)


def test_generations_that_may_not_be_seen_change_nothing(memory: Remembered) -> None:
    memory.close(0, [{"env_id": "a"}, {"env_id": "b", "regret": 0.2}])
    before = memory.ranked(0, MemorySettings())
    memory.close(1, [{"env_id": "c", "regret": 0.9}], repeated={"a": 3})
    assert memory.ranked(0, MemorySettings()) == before
    assert ids(memory.ranked(1, MemorySettings())) == ["c", "b", "a"]
    assert memory.ranked(-1, MemorySettings()) == []
    assert memory.ranked(1, MemorySettings(enabled=False)) == []


def test_negatives_are_newest_first_and_mastered_ones_age_out(memory: Remembered) -> None:
    for generation in range(4):
        memory.close(generation, [
            {"env_id": f"easy-{generation}", "win_rate": 1.0}, {"env_id": f"hard-{generation}", "win_rate": 0.0},
        ])  # fmt: skip
    found = memory.ranked(3, MemorySettings(age_out=2))
    assert ids(found, "easy") == ["easy-3", "easy-2"]
    assert ids(found, "hard") == ["hard-3", "hard-2", "hard-1", "hard-0"]
    assert ids(memory.ranked(3, MemorySettings(age_out=0)), "easy") == ["easy-3", "easy-2", "easy-1", "easy-0"]
    assert ids(memory.ranked(3, MemorySettings(generations=1)), "hard") == ["hard-3"]


def test_an_environment_stands_as_it_was_last_measured_up_to_what_may_be_seen(memory: Remembered) -> None:
    memory.close(0, [
        {"env_id": "grown", "win_rate": 0.0}, {"env_id": "mastered", "regret": 0.4}, {"env_id": "unfair", "regret": 0.3},
        {"env_id": "still"},
    ])  # fmt: skip
    memory.close(1, [{"env_id": "b", "regret": 0.2}], probes=[
        _probed("grown", 0, win_rate=0.5, regret=0.5), _probed("mastered", 1, win_rate=0.6, regret=0.0),
    ])  # fmt: skip
    memory.close(2, [{"env_id": "c"}], probes=[
        _probed("mastered", 1, win_rate=1.0, regret=0.0), _probed("unfair", 2, evicted="audit"),
    ])  # fmt: skip
    every = MemorySettings(age_out=0)
    assert (ids(memory.ranked(0, every)), ids(memory.ranked(0, every), "hard")) == (["mastered", "unfair", "still"], ["grown"])
    assert (ids(memory.ranked(1, every)), ids(memory.ranked(1, every), "hard")) == (
        ["grown", "unfair", "b", "still", "mastered"],
        [],
    )
    assert (ids(memory.ranked(2, every)), ids(memory.ranked(2, every), "easy")) == (["grown", "b", "c", "still"], ["mastered"])
    measured = {one.env_id: (one.measured, one.regret) for one in memory.ranked(2, every)}
    assert (measured["grown"], measured["mastered"], measured["still"]) == ((1, 0.5), (2, 0.0), (0, 0.1))


def test_the_most_repeated_is_counted_over_the_generations_that_age_out_leaves(memory: Remembered) -> None:
    memory.close(0, [{"env_id": name} for name in ("a", "b", "c")] + [{"env_id": "t", "skill": "t"}])
    memory.close(1, [{"env_id": "d"}], repeated={"a": 5, "t": 9})
    memory.close(2, [{"env_id": "e"}], repeated={"c": 2, "b": 1})
    memory.close(3, [{"env_id": "f"}], repeated={"b": 1})
    every = MemorySettings(negatives=("repeated", "repeated", "repeated"), age_out=0)
    assert ids(memory.ranked(3, every), "repeated") == ["a", "b", "c"]
    assert ids(memory.ranked(3, every.model_copy(update={"age_out": 2})), "repeated") == ["b", "c"]
    assert [line.env_id for line in memory.lines(3, MemorySettings(negatives=("repeated",), seeds=0))] == ["a"]


def test_lines_carry_the_text_the_current_figures_and_seeds_that_differ(memory: Remembered) -> None:
    memory.close(0, [{"env_id": f"{letter}{number}"} for letter in "xy" for number in range(3)] + [
        {"env_id": "easy", "win_rate": 0.95}, {"env_id": "hard", "win_rate": 0.05, "regret": -0.25},
    ])  # fmt: skip
    for draw in "abcdefgh":
        lines = memory.lines(0, MemorySettings(), draw)
        assert [line.kind for line in lines] == ["best", "best", "easy", "hard"]
        assert {line.env_id[0] for line in lines[:2]} == {"x", "y"}
        assert lines == memory.lines(0, MemorySettings(), draw)
    assert lines[3] == MemoryLine(
        env_id="hard", kind="hard", skill="s", source="source of hard", hint="hint of hard", win_rate=0.05, regret=-0.25
    )


def test_published_draws_from_the_last_two_hundred_of_all_skills(memory: Remembered) -> None:
    memory.close(
        0, [{"env_id": f"old-{number:03d}", "regret": 0.9} for number in range(20)] + [{"env_id": "old", "win_rate": 1.0}]
    )
    memory.close(
        1, [{"env_id": f"new-{number:03d}", "regret": number / 1000, "skill": "st"[number % 2]} for number in range(200)]
    )
    found = memory.ranked(1, PAPER)
    assert ids(found)[:3] == ["new-198", "new-196", "new-194"]
    assert len(found) == 11  # the ten, and one in case a negative is among them
    memory.close(2, [{"env_id": "gone", "evicted": "audit"}, {"env_id": "hard", "win_rate": 0.0}])
    lines = memory.lines(2, PAPER)
    assert [line.kind for line in lines] == ["best", "best", "hard"]
    assert {line.env_id for line in lines[:2]} <= set(ids(found)[:10])


def test_a_text_that_never_comes_ends_the_selection_with_its_cause(memory: Remembered) -> None:
    memory.close(0, [{"env_id": "a"}], texts=False)
    with pytest.raises(StageTimeoutError, match=r"the verdict on environment a of run .* was not in the store within 0 s"):
        memory.lines(0, MemorySettings(wait_s=0.1))


def test_redelivered_closings_count_once(memory: Remembered) -> None:
    designs: list[dict[str, Any]] = [{"env_id": "a"}, {"env_id": "easy", "win_rate": 1.0}]
    memory.close(0, designs)
    before = memory.ranked(0, MemorySettings())
    memory.close(0, designs)
    assert memory.ranked(0, MemorySettings()) == before
    assert len(before) == 2


def test_the_benchmark_asks_and_tells_every_question_on_a_small_memory() -> None:
    told: list[str] = []
    rows = memory_rows(measure(told.append, environments=2400, rounds=1), environments=2400)
    asked = [
        "selection, mended", "selection, published", "dashboard's environments, newest", "dashboard's environments, searched",
        "spade why, by id", "spade why, by an id's beginning",
    ]  # fmt: skip
    assert [row.what for row in rows[::2]] == [f"memory of 2,400: {what}, median" for what in asked]
    assert all(row.seen > 0 for row in rows)
    assert told
