"""The example environments: one a skill, registered with gymnasium and sound by its own checker, won by their own solutions."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from infra.actions import read_action
from infra.examples import EXAMPLES, Example
from infra.examples.gym import CHARSET, TextEnv, make_example, register_examples
from infra.suites import load_suite
from schemas.settings import GAMES_SKILLS, TOOLS_SKILLS
from workers.gate.static import ALLOWED_IMPORTS, check_static, cut_solution

IDS = [example.name for example in EXAMPLES]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register_examples()
    register_examples()  # a second time changes nothing, and warns of nothing


def test_each_skill_of_both_settings_has_an_example() -> None:
    assert [example.skill for example in EXAMPLES] == [*GAMES_SKILLS, *TOOLS_SKILLS]
    assert [example.setting for example in EXAMPLES] == ["games"] * 6 + ["tools"] * 6
    assert len({example.gym_id for example in EXAMPLES}) == 12


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_example_keeps_the_static_rules_and_its_hint_is_short(example: Example) -> None:
    check_static(example.source, ALLOWED_IMPORTS)
    assert len(example.hint.split()) < 100
    assert 1 <= example.hint.count(".") <= 3
    assert example.source.startswith(f'"""{example.skill}: ')


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_gymnasiums_own_checker_finds_nothing_not_even_a_warning(example: Example) -> None:
    environment = gymnasium.make(example.gym_id, render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment.unwrapped)
    environment.close()


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_solution_wins_through_gymnasium_and_nothing_malformed_ends_or_breaks_it(example: Example) -> None:
    environment = gymnasium.make(example.gym_id)
    for seed in range(5):
        first, info = environment.reset(seed=seed)
        assert (environment.observation_space.contains(first), info) == (True, {})
        assert first == environment.reset(seed=seed)[0]
        actions = environment.unwrapped.contract.solution()
        for place, action in enumerate(actions):
            assert read_action(example.setting, action).fault == ""
            assert environment.action_space.contains(action)
            observation, reward, terminated, truncated, _ = environment.step(action)
            last = place == len(actions) - 1
            assert (reward, terminated, truncated) == ((1.0, True, False) if last else (0.0, False, False)), observation
    for malformed in ("", "<tool_call>{</tool_call>", "\\boxed{", "nonsense"):
        environment.reset(seed=7)
        observation, reward, terminated, _, _ = environment.step(malformed)
        assert observation
        assert (reward, terminated) == (0.0, False)


@pytest.mark.parametrize("setting", ["games", "tools"])
def test_the_suites_of_both_settings_are_the_examples_without_their_solutions(setting: str) -> None:
    items = load_suite(setting)
    examples = [example for example in EXAMPLES if example.setting == setting]
    assert [item.source for item in items] == [cut_solution(example.source) for example in examples]
    assert [(item.skill, item.hint, item.win_return) for item in items] == [(one.skill, one.hint, 1.0) for one in examples]
    assert all("def solution" not in item.source for item in items)


def test_a_seed_repeats_what_a_reset_without_one_goes_on_with() -> None:
    environment = make_example("market_bill", "games")
    seen = [[environment.reset(seed=3)[0], *(environment.reset()[0] for _ in range(3))] for _ in range(2)]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 4


def test_the_hint_follows_the_first_observation_only() -> None:
    plain, hinted = (make_example("next_numbers", "games", hint=hint) for hint in ("", "Look at every second number."))
    assert hinted.reset(seed=1)[0] == f"{plain.reset(seed=1)[0]}\n\nHint: Look at every second number."
    assert hinted.step("x")[0] == plain.step("x")[0]


def test_letters_outside_the_space_are_shown_as_a_question_mark() -> None:
    class Odd:
        def reset(self, seed: int | None = None) -> tuple[str, dict[str, object]]:
            return "caf\u00e9\r\u202e", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
            return "x" * 100_000, 0, True, False, {}

    environment = TextEnv(Odd())
    assert environment.reset()[0] == "caf???"
    shown, reward, *_ = environment.step("")
    assert environment.observation_space.contains(shown)
    assert isinstance(reward, float)
    assert environment.render() == shown
    assert set("\n\t az09{}\\") <= set(CHARSET)


def test_importing_the_examples_registers_nothing_and_gymnasiums_module_syntax_does() -> None:
    code = (
        "import gymnasium, infra.examples, infra.examples.gym\n"
        "assert not [name for name in gymnasium.registry if name.startswith('spade/')]\n"
        "gymnasium.make('infra.examples.registered:spade/RobotWalk-v0').reset(seed=1)\n"
        "print(sum(name.startswith('spade/') for name in gymnasium.registry))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "12"


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
@pytest.mark.parametrize("turns", [1, 3, 6])
def test_a_game_of_few_turns_begins_too(example: Example, turns: int) -> None:
    contract = type(gymnasium.make(example.gym_id).unwrapped.contract)(max_turns=turns)
    for seed in range(5):
        first, info = contract.reset(seed=seed)
        assert first
        assert info == {}
        assert contract.solution()
