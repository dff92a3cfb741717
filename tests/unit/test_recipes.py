"""The shipped recipes load, and say what spade.md's table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.cli.options import read_overrides, read_recipe, shipped_recipes
from schemas.errors import SettingsError
from schemas.settings import GAMES_SKILLS, TOOLS_SKILLS, Recipe

NANO_LIKE = ("nano", "nano-published", "demo", "tiny")
# name: interval, KL weight, thinking; the paper's numbers (spade.md), and that its 4B and 30B backbones do not think
PAPER = {
    "qwen3-4b-games": (4, 0.0, False),
    "qwen3-4b-tools": (4, 0.005, False),
    "qwen3-8b-games": (4, 0.005, True),
    "qwen3-8b-tools": (8, 0.005, True),
    "qwen3-30b-a3b-games": (4, 0.0, False),
    "qwen3-30b-a3b-tools": (8, 0.005, False),
}


@pytest.mark.parametrize("name", NANO_LIKE)
def test_shipped_recipe_loads_by_name_and_bears_it(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    assert shipped_recipes()[name].is_file()


@pytest.mark.parametrize("name", PAPER)
def test_recipe_of_a_backbone_carries_the_papers_numbers(name: str) -> None:
    recipe, (interval, kl_beta, thinking) = read_recipe(name), PAPER[name]
    tools = name.endswith("-tools")
    schedule, design, rollout, train = recipe.schedule, recipe.design, recipe.rollout, recipe.train
    assert (recipe.setting, recipe.model.dialect, recipe.model.thinking) == (*[("games", "tools")[tools]] * 2, thinking)
    assert recipe.skills == (TOOLS_SKILLS if tools else GAMES_SKILLS)
    assert (schedule.steps, schedule.interval, schedule.delay, schedule.lag, schedule.lead) == (400, *[interval] * 2, 1, interval)
    assert (design.environments, design.attempts, design.skills_active, rollout.plain_plays) == (24, 5, 3, 8)
    assert (rollout.max_turns, rollout.context_tokens) == (25, 32768)
    assert (design.sampling.max_tokens, rollout.sampling.max_tokens) == (16384, 8192)
    for sampling in (design.sampling, rollout.sampling):
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)
    assert design.hint_sampling.temperature == 0.3
    assert (train.learning_rate, train.betas, train.weight_decay) == (1e-6, (0.9, 0.98), 0.1)
    assert (train.clip_low, train.clip_high, train.kl_beta, train.correction) == (0.2, 0.28, kl_beta, "truncated")
    assert (recipe.memory.seeds, recipe.memory.top) == (2, 10)
    assert (recipe.memory.frontier, recipe.memory.negative) == ((0.15, 0.85), (0.1, 0.9))
    assert recipe.evaluation.suite == recipe.setting
    assert recipe.corpus.max_words == (4000 if tools else 6000)


@pytest.mark.parametrize("name", PAPER)
def test_recipe_of_a_backbone_turns_published_by_one_override(name: str) -> None:
    published = read_recipe(name, ["algorithm=published", *(["schedule.lead=0"] if PAPER[name][0] == 8 else [])])
    assert (published.rollout.paired, published.rollout.hint_plays, published.train.aggregate) == (False, 16, "sample")
    assert (published.memory.window, published.memory.negatives, published.memory.probe_environments) == (
        200,
        ("easy-or-hard",),
        0,
    )
    assert (published.design.hint_by_second_call, published.schedule.lag_limit("designer")) == (True, published.schedule.delay)


@pytest.mark.parametrize("name", NANO_LIKE)
def test_nano_recipes_share_the_nano_schedule_and_sampling(name: str) -> None:
    recipe = read_recipe(name)
    schedule = recipe.schedule
    assert (schedule.interval, schedule.delay, schedule.lag, schedule.lead, schedule.memory_lag) == (1, 1, 1, 1, 2)
    for sampling in (recipe.design.sampling, recipe.rollout.sampling):
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (recipe.design.sampling.max_tokens, recipe.rollout.sampling.max_tokens) == (256, 96)
    assert (recipe.rollout.max_turns, recipe.rollout.context_tokens) == (16, 512)
    assert recipe.train.learning_rate == 2e-4
    assert (recipe.design.advantage_group, recipe.design.advantage) == ("document", "z-score")
    assert (recipe.design.duplicate, recipe.design.identical_penalty) == ("penalise", 0.2)
    assert recipe.rollout.train_hint_arm
    assert recipe.memory.generations == 8


def test_nano_recipe_has_the_tables_sizes() -> None:
    nano = read_recipe("nano")
    assert (nano.design.environments, nano.design.per_document, nano.design.attempts) == (64, 8, 1)
    assert (nano.rollout.plain_plays, nano.rollout.hint_plays, nano.rollout.seeds, nano.rollout.paired) == (8, 8, 8, True)


def test_published_nano_recipe_differs_where_the_published_system_does() -> None:
    published = read_recipe("nano-published")
    assert published.algorithm == "published"
    assert not published.rollout.paired
    assert published.design.regret_bound == "mean"
    assert not published.design.train_rejected
    assert (published.train.aggregate, published.train.logits) == ("sample", "plain")


def test_override_changes_one_key_and_keeps_the_rest() -> None:
    recipe = read_recipe("tiny", ["schedule.steps=8", "name=other", "rollout.paired=false"])
    assert (recipe.schedule.steps, recipe.name, recipe.rollout.paired) == (8, "other", False)
    assert recipe.rollout.plain_plays == read_recipe("tiny").rollout.plain_plays


def test_folder_beside_the_recipe_becomes_absolute(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "own.toml").write_text('[corpus]\npath = "texts"\n')
    recipe = read_recipe(str(tmp_path / "own.toml"))
    assert recipe.corpus.path == str(tmp_path / "texts")
    assert recipe.name == "own"
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[schedule]\nstep = 3\n", r"schedule\.step: unknown key"),
        ("[schedule]\nsteps = 0\n", r"schedule\.steps"),
        ("[schedule]\nsteps = 6\n", "must be a multiple of interval"),
        ("steps = \n", "is not TOML"),
    ],
)
def test_bad_recipe_names_file_and_key(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        read_recipe(str(file))
    assert str(file) in str(caught.value)


def test_unknown_recipe_name_lists_the_shipped_ones() -> None:
    with pytest.raises(SettingsError, match=r"recipe nanoo does not exist.*nano-published"):
        read_recipe("nanoo")


def test_override_without_a_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="not KEY=VALUE"):
        read_overrides(["schedule.steps"])
