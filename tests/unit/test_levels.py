"""A procedural pool: levels slide by what is closed, one plan whatever the timing; what a pool and a recipe must say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from infra.corpus.pool import load_pool, recipe_documents
from schemas.common import Reference
from schemas.design import Document, MemoryLine, SlotsClosed
from schemas.errors import CorpusError, SettingsError
from schemas.recipes import build_recipe
from schemas.score import GenerationClosed, ScoredDesign
from schemas.settings import Recipe
from schemas.topics import Topic
from streams.levels import Ladder, author_level
from streams.slots import fill_slots
from tests.streamworld import Shares, World, small_recipe

AT = Reference(topic="t", partition=0, offset=0, id="x")
POOL = [
    Document(document_id=f"{family}{level}-{copy}", title="", text="x", skill=skill, family=family, level=level)
    for family, skill in (("chain", "maths"), ("walk", "space"))
    for level in range(6)
    for copy in range(2)
]


def procedural(**over: Any) -> Recipe:
    values = {
        "pool": "procedural",
        "skills": ["maths", "space"],
        "design": {"environments": 4, "skills_active": 2},
        "rollout": {"plain_plays": 4, "seeds": 4},
        "schedule": {"steps": 40, "interval": 1, "delay": 1, "lag": 1, "lead": 1},
    }
    return build_recipe(values, {key.replace("__", "."): value for key, value in over.items()})


def closing(generation: int, *played: tuple[str, float], **over: Any) -> GenerationClosed:
    designs = [
        ScoredDesign(
            **{
                "env_id": f"e{generation}-{slot}", "slot": slot, "design_attempt": 0, "skill": "maths", "document_id": name,
                   "group": "", "proposal": AT, "valid": True, "w": rate, "win_rate": rate, "hint_win_rate": 0.0, "regret": 0.0,
                   "regret_se": 0.0, "reward": 0.0, "advantage": 0.0, "trained": False,
                **over,
            }
        )
        for slot, (name, rate) in enumerate(played)
    ]  # fmt: skip
    return GenerationClosed(
        run_id="run", event_id=f"g{generation}", generation=generation, designs=designs, proposed=4, valid=len(designs),
        rejected_by_rule={}, missing=0, duplicates=0, win_rate=0.0, hint_win_rate=0.0, regret=0.0, regret_se=0.0,
        designer_reward=0.0, repeats=0.0, vendi=1.0, lost=0,
    )  # fmt: skip


def ladder(*closings: GenerationClosed, **over: Any) -> Ladder:
    made = Ladder(procedural(**over), POOL)
    for one in closings:
        made.note(one)
    return made


def test_every_family_begins_at_its_lowest_level() -> None:
    assert ladder().reached(None) == {"chain": 0, "walk": 0}


def test_a_family_rises_once_nine_in_ten_of_eight_plays_are_won() -> None:
    won = closing(0, ("chain0-0", 1.0), ("chain0-1", 0.75), ("walk0-0", 1.0), ("walk0-1", 1.0))
    assert ladder(won).reached(0) == {"chain": 0, "walk": 1}  # 7 of 8, 8 of 8
    assert ladder(won, levels__rise_at=0.8).reached(0) == {"chain": 1, "walk": 1}


def test_fewer_plays_than_asked_for_are_kept_until_there_are_enough() -> None:
    first, second = closing(0, ("chain0-0", 1.0)), closing(1, ("chain0-1", 1.0))
    assert ladder(first).reached(0)["chain"] == 0
    assert ladder(first, second).reached(1)["chain"] == 1


def test_the_count_begins_anew_after_each_asking() -> None:
    lost = closing(0, ("chain0-0", 0.0), ("chain0-1", 0.0))
    won = closing(1, ("chain0-0", 1.0), ("chain0-1", 1.0))
    assert ladder(lost, won).reached(1)["chain"] == 1


def test_only_the_familys_own_level_counts_and_the_last_is_the_end() -> None:
    below = closing(1, ("chain0-0", 1.0), ("chain0-1", 1.0))
    assert ladder(closing(0, ("chain0-0", 1.0), ("chain0-1", 1.0)), below).reached(1)["chain"] == 1
    every = [closing(level, (f"chain{level}-0", 1.0), (f"chain{level}-1", 1.0)) for level in range(6)]
    assert ladder(*every).reached(5)["chain"] == 5


@pytest.mark.parametrize("over", [{"valid": False}, {"evicted": "non-finite"}])
def test_what_was_refused_or_evicted_raises_nothing(over: dict[str, Any]) -> None:
    assert ladder(closing(0, ("chain0-0", 1.0), ("chain0-1", 1.0), **over)).reached(0)["chain"] == 0


def test_closings_beyond_memorys_end_change_nothing() -> None:
    early = closing(0, ("chain0-0", 1.0), ("chain0-1", 1.0))
    late = closing(1, ("chain1-0", 1.0), ("chain1-1", 1.0))
    known = ladder(early, late)
    assert [known.reached(newest)["chain"] for newest in (None, 0, 1)] == [0, 1, 2]


def test_levels_are_drawn_from_the_window_below_the_familys_own_and_from_the_slots_skill() -> None:
    every = [closing(level, (f"chain{level}-0", 1.0), (f"chain{level}-1", 1.0)) for level in range(5)]
    known = ladder(*every)
    drawn = [known.draw(generation, block, "maths", 4, []) for generation in range(6, 60) for block in range(4)]
    assert {one.family for one in drawn} == {"chain"}
    counts = Counter(one.level for one in drawn)
    assert set(counts) == {2, 3, 4, 5}
    assert min(counts.values()) > len(drawn) / 8
    assert {one.level for one in (known.draw(6, block, "maths", 4, []) for block in range(40))} <= {2, 3, 4, 5}
    assert [known.draw(7, block, "maths", 4, []) for block in range(4)] == [
        ladder(*every).draw(7, block, "maths", 4, []) for block in range(4)
    ]


def test_slots_of_a_procedural_pool_carry_the_drawn_environment() -> None:
    recipe = procedural()
    slots = fill_slots("run", recipe, POOL, 0, 0, {slot: [] for slot in range(4)}, Ladder(recipe, POOL))
    assert [slot.skill for slot in slots] == ["maths", "space", "maths", "space"]
    assert [(slot.document.family, slot.document.level) for slot in slots] == [("chain", 0), ("walk", 0)] * 2


def line(env_id: str, kind: str) -> MemoryLine:
    return MemoryLine(env_id=env_id, kind=kind, skill="maths", source="", hint="", win_rate=0.5, regret=0.0)


def test_the_author_keeps_near_the_best_above_the_easy_and_below_the_hard() -> None:
    rng = Random(3)
    levels = list(range(12))
    near = {author_level(rng, levels, {"best": [5]}) for _ in range(200)}
    assert near == {4, 5, 6}
    assert {author_level(rng, levels, {"best": [5], "easy": [5], "hard": [7]}) for _ in range(200)} == {6}
    assert {author_level(rng, levels, {"easy": [3], "hard": [7]}) for _ in range(200)} == {4, 5, 6}
    assert {author_level(rng, levels, {"easy": [3]}) for _ in range(200)} == {4, 5, 6}
    assert {author_level(rng, levels, {"hard": [7]}) for _ in range(200)} == {4, 5, 6}
    assert {author_level(rng, levels, {}) for _ in range(200)} == {0, 1, 2}


def test_memory_lines_move_the_author_by_the_levels_that_their_environments_had() -> None:
    known = ladder(closing(0, ("chain4-0", 0.5), ("walk2-0", 0.9)), levels__rule="memory", memory__enabled=True)
    drawn = {known.draw(2, block, "maths", 0, [line("e0-0", "easy"), line("unknown", "hard")]).level for block in range(60)}
    assert drawn == {5}  # above 4; nothing is harder than the last
    assert {known.draw(2, block, "maths", 0, []).level for block in range(60)} == {0, 1, 2}


@pytest.mark.parametrize("seed", range(4))
def test_one_plan_whatever_the_timing_and_the_restarts(seed: int) -> None:
    recipe = small_recipe(pool="procedural", design__attempts=1, levels__tries=2, levels__rise_at=0.3, schedule__steps=16)
    calm = World(recipe, Shares(), 0)
    calm.run()
    disturbed = World(recipe, Shares(), seed + 1, restart=0.05)
    disturbed.run()
    assert drawn(disturbed) == drawn(calm)
    assert disturbed.plan() == calm.plan()
    assert len({name for members in drawn(calm).values() for name in members}) > 3  # levels have moved


def drawn(world: World) -> dict[int, list[str]]:
    found = [record for record in world.records(Topic.SLOTS_CLOSED) if isinstance(record, SlotsClosed)]
    return {record.generation: [member.document_id for member in record.members] for record in found}


def test_a_pool_without_levels_is_refused_by_name(tmp_path: Path) -> None:
    lines = [{"id": "a", "source": "x", "family": "chain", "level": 0}, {"id": "b", "source": "y", "family": "chain"}]
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [(one.family, one.level) for one in load_pool(tmp_path)] == [("chain", 0), ("chain", -1)]
    with pytest.raises(CorpusError, match=r"environment b in .* names no family and level"):
        recipe_documents(procedural(), tmp_path)


def test_the_authors_rule_needs_memory_and_nobody_designs() -> None:
    with pytest.raises(SettingsError, match=r'levels\.rule = "memory" needs memory\.enabled'):
        procedural(levels__rule="memory")
    with pytest.raises(SettingsError, match='pool = "procedural" needs designer = "frozen"'):
        procedural(designer="trained")
    assert procedural().design_tokens == 0
