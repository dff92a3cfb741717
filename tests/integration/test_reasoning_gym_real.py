"""The suite reasoning-gym made by its real package: `make test` installs it wherever a C compiler is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.cli.app import run_app
from infra.evaluations import read_evaluations, suite_digest
from infra.suites import SuiteItem, evaluation_seed, load_suite
from infra.suites.reasoninggym import LARGEST, NAME, TASKS
from trainer.nano.build import MODEL_FOLDER
from workers.gate.static import check_static
from workers.sandbox import open_sandbox

pytestmark = pytest.mark.integration
pytest.importorskip("reasoning_gym", reason="no C compiler was there to build the package: make install-reasoning-gym")


@pytest.fixture(scope="module")
def items() -> list[SuiteItem]:
    return load_suite(NAME)


def answers(item: SuiteItem) -> list[tuple[str, str]]:
    space: dict[str, Any] = {}
    exec(item.source, space)
    return list(space["ReasoningGymEnv"].pairs)


def test_it_has_every_task_of_four_groups_and_the_gate_takes_each_source(items: list[SuiteItem]) -> None:
    assert [(item.skill, item.family) for item in items] == [(group, task) for group, tasks in TASKS.items() for task in tasks]
    assert len({item.skill for item in items}) == 4
    for item in items:
        assert len(item.source.encode()) < LARGEST + 2_000
        check_static(item.source + "\n    def solution(self):\n        return [self.answer]\n", frozenset())


def test_the_packages_own_answers_win_in_the_jail_and_others_do_not(items: list[SuiteItem]) -> None:
    sandbox = open_sandbox("zygote", slot_base=80)
    try:
        for item in items:
            pairs, seed = answers(item), evaluation_seed(item.env_id, 0)
            question, answer = pairs[seed % len(pairs)]
            for action, paid in ((answer, 1.0), (answer + "?", 0.0)):
                with sandbox.open(item.source, max_turns=1) as session:
                    assert session.reset(seed) == question
                    assert session.step(action).reward == paid
    finally:
        sandbox.close()


def test_spade_eval_plays_it_with_a_model_and_tells_each_group(tmp_path: Path, items: list[SuiteItem]) -> None:
    out = tmp_path / "gym.json"
    assert run_app(["eval", str(MODEL_FOLDER), "--suite", NAME, "--seeds", "2", "--out", str(out)]) == 0
    (one,) = read_evaluations(out)
    assert one.instances == 2 * len(items) == len(one.results)
    assert set(one.by_skill) == set(TASKS)
    assert (one.suite, one.arm, one.suite_digest) == (NAME, "plain", suite_digest(items))
    assert one.tokens > 0
