"""The suite reasoning-gym without its package: what is said where that is missing, and what its items do in play."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from infra.cli.app import run_app
from infra.suites import load_suite
from infra.suites.reasoninggym import FEWEST, LONGEST_QUESTION, TASKS, _drawn, make_item
from schemas.errors import SettingsError
from workers.gate.static import check_static

PAIRS = [(f'What is "{number}" + 1?', f" {number + 1}\n") for number in range(120)]


def opened(source: str) -> Any:
    space: dict[str, Any] = {}
    exec(source, space)
    return space["ReasoningGymEnv"]()


def test_a_missing_package_is_one_line_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    _drawn.cache_clear()
    with pytest.raises(SettingsError, match=r"needs the package reasoning-gym.*make install-reasoning-gym"):
        load_suite("reasoning-gym")
    assert run_app(["eval", "trainer/nano/model", "--suite", "reasoning-gym"]) == 2
    assert "which is not installed here" in capsys.readouterr().err


def test_an_item_shows_its_questions_by_seed_and_pays_for_the_answer_alone() -> None:
    item = make_item("arithmetic", "plus", PAIRS)
    assert (item.env_id, item.family, item.skill, item.max_turns) == ("rg-plus", "plus", "arithmetic", 1)
    environment = opened(item.source)
    for seed in (0, 7, 119, 120, 2**32 - 1):
        question, answer = environment.reset(seed)[0], PAIRS[seed % 120][1].strip()
        assert question == PAIRS[seed % 120][0]
        assert environment.step(answer)[1:3] == (1.0, True)
        assert environment.step(answer)[1] == 0.0  # after the end nothing is paid
        for action, paid in (
            (f" {answer} ", 1.0),
            (f"\\boxed{{{answer}}}", 1.0),
            (f"\\boxed{{ {answer} }}", 1.0),
            (f"{answer}0", 0.0),
            ("", 0.0),
            (f"it is {answer}", 0.0),
        ):
            environment.reset(seed)
            assert environment.step(action)[1] == paid


def test_questions_that_are_too_long_or_repeated_are_left_out() -> None:
    long = [("x" * (LONGEST_QUESTION + 1), "1"), ("short", "1" * 25), ("empty", " "), *PAIRS, *PAIRS]
    assert len(opened(make_item("g", "t", long).source).pairs) == len(PAIRS)
    with pytest.raises(SettingsError, match=rf"{FEWEST - 1} questions of task t are short enough"):
        make_item("g", "t", PAIRS[: FEWEST - 1])


@pytest.mark.parametrize("pairs", [PAIRS, [(f"{number}: {'ä' * 200}", "1") for number in range(400)]])
def test_items_are_environments_that_the_gates_static_rules_take(pairs: list[tuple[str, str]]) -> None:
    source = make_item("g", "t", pairs).source + "\n    def solution(self):\n        return [self.answer]\n"
    check_static(source, frozenset())


def test_each_of_the_four_groups_has_two_tasks_at_least() -> None:
    assert {group: len(tasks) >= 2 for group, tasks in TASKS.items()} == dict.fromkeys(
        ("arithmetic", "algorithmic", "cognition", "logic"), True
    )
