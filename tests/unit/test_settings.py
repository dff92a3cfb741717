"""Recipes: defaults of the two algorithms, bounds, and messages that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import SettingsError
from schemas.recipes import build_recipe, load_recipe
from schemas.settings import TOOLS_SKILLS, Recipe


def test_mended_is_the_default_and_pairs_the_arms() -> None:
    recipe = build_recipe({})
    assert (recipe.algorithm, recipe.rollout.paired, recipe.design.regret_bound) == ("mended", True, "lower")
    schedule = recipe.schedule
    assert (schedule.interval, schedule.delay, schedule.lag, schedule.lead, schedule.memory_lag) == (4, 4, 1, 4, 2)


def test_published_brings_back_the_papers_rules_and_yields_to_the_recipe() -> None:
    recipe = build_recipe({"algorithm": "published", "schedule": {"lag": 1}})
    assert (recipe.rollout.hint_plays, recipe.rollout.paired, recipe.train.logits) == (16, False, "plain")
    assert (recipe.schedule.lag, recipe.schedule.lead, recipe.schedule.memory_lag) == (1, 0, 1)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"colour": 1}, "colour: unknown key"),
        ({"schedule": {"delay": 2}}, "delay"),
        ({"schedule": {"steps": 7}}, "multiple of interval"),
        ({"rollout": {"plain_plays": 0}}, "rollout.plain_plays"),
        ({"design": {"environments": 10, "per_document": 4}}, "per_document"),
        ({"train": {"learning_rate": -1.0}}, "train.learning_rate"),
    ],
)
def test_a_bad_recipe_is_refused_with_the_key_that_is_wrong(values: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        build_recipe(values)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.learning_rat": 1}, "--set train.learning_rat: unknown key (did you mean train.learning_rate?). "),
        ({"train.zzz": 1}, "--set train.zzz: unknown key; keys of train: learning_rate, betas"),
        ({"corpus": "/nope"}, "--set corpus: corpus is a section, set a key of it: corpus.enabled, corpus.path"),
        ({"schedule.steps": 7}, "--set schedule.steps: Value error, steps (7) must be a multiple"),
        ({"rollout.seeds": 99}, "--set rollout.seeds: Value error, rollout.seeds (99) can't exceed"),
    ],
)
def test_a_bad_override_is_blamed_not_the_file(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        build_recipe({}, overrides, "shipped.toml")
    assert str(raised.value).startswith(message)
    assert "shipped.toml" not in str(raised.value)


def test_an_unknown_key_of_a_file_shows_the_close_one_and_all() -> None:
    with pytest.raises(SettingsError) as raised:
        build_recipe({"schedule": {"stepz": 3}}, {"train.threads": 2}, "my.toml")
    expected = "my.toml: schedule.stepz: unknown key (did you mean schedule.steps?); keys of schedule: kind, steps, interval"
    assert str(raised.value).startswith(expected)


def test_several_faults_are_told_one_by_one() -> None:
    with pytest.raises(SettingsError) as raised:
        build_recipe({"schedule": {"stepz": 3}, "seed": "x"}, {"train.zzz": 1}, "my.toml")
    error = raised.value
    starts = [
        "my.toml: seed: Input should be a valid integer",
        "my.toml: schedule.stepz: unknown key",
        "--set train.zzz: unknown key",
    ]
    assert all(fault.startswith(start) for fault, start in zip(sorted(error.faults), sorted(starts), strict=True))
    assert error.fix == "Correct or remove the keys"
    assert str(error) == f"{'; '.join(error.faults)}. {error.fix}"


def test_overrides_reach_nested_keys_and_leave_the_file_values_alone() -> None:
    values = {"schedule": {"steps": 40}}
    recipe = build_recipe(values, {"schedule.interval": 2, "schedule.delay": 2})
    assert (recipe.schedule.steps, recipe.schedule.interval) == (40, 2)
    assert values == {"schedule": {"steps": 40}}


def test_tools_bring_their_skills_and_shorter_documents_and_a_recipe_may_differ() -> None:
    recipe = build_recipe({"setting": "tools"})
    assert (recipe.skills, recipe.corpus.max_words) == (TOOLS_SKILLS, 4000)
    assert build_recipe({"setting": "tools", "skills": ["Data Retrieval"]}).skills == ("Data Retrieval",)


def test_a_dialect_of_the_other_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"model.dialect \(games\) is not that of setting \(tools\)"):
        build_recipe({"setting": "tools", "model": {"dialect": "games"}})


def test_the_run_record_carries_the_whole_recipe() -> None:
    recipe = build_recipe({"algorithm": "published", "seed": 7})
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml does not exist"):
        load_recipe(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 3")
    with pytest.raises(SettingsError, match=r"broken\.toml is not TOML"):
        load_recipe(broken)
