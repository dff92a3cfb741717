"""Environments that import numpy and gymnasium: admitted and played where the recipe allows them, refused by name where not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.cli.app import run_app
from schemas.errors import SandboxError
from schemas.recipes import build_recipe
from workers.gate import ALLOWED_IMPORTS, judge
from workers.sandbox import EndReason, Sandbox, SessionEnd, open_sandbox
from workers.sandbox.attacks import ATTACKS
from workers.sandbox.attacks.base import Attack, Barrier
from workers.sandbox.attacks.drill import Drill

pytestmark = pytest.mark.integration

PACKAGES = build_recipe({"sandbox": {"packages": ["numpy", "gymnasium"]}}).sandbox.packages
HINT = "Add the numbers pair by pair."
NUMPY = """
import numpy as np


class ArraySumEnv:
    def __init__(self, max_turns=25):
        self.goal = None

    def reset(self, seed=None):
        rng = np.random.default_rng(seed)
        values = rng.integers(10, 90, size=3)
        self.goal = str(int(values.sum()))
        return "The sum of " + ", ".join(str(value) for value in values.tolist()) + "?", {}

    def step(self, action):
        won = action.strip() == self.goal
        self.goal = None
        return ("Right." if won else "Wrong."), float(won), True, False, {}

    def solution(self):
        return [self.goal]
"""
GYMNASIUM = NUMPY.replace("import numpy as np", "import gymnasium").replace(
    "        rng = np.random.default_rng(seed)\n        values = rng.integers(10, 90, size=3)\n",
    "        space = gymnasium.spaces.MultiDiscrete([80, 80, 80], seed=seed, start=[10] * 3)\n        values = space.sample()\n",
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Jails that hold both packages."""
    opened = open_sandbox("zygote", packages=PACKAGES)
    yield opened
    opened.close()


@pytest.mark.parametrize("source", [NUMPY, GYMNASIUM], ids=["numpy", "gymnasium"])
def test_environment_that_imports_an_allowed_package_is_admitted_and_played(sandbox: Sandbox, source: str) -> None:
    verdict = judge(sandbox, source, HINT, allowed_imports=ALLOWED_IMPORTS.union(PACKAGES))

    assert (verdict.rule, verdict.evidence) == ("", "")
    with sandbox.open(verdict.play_source, max_turns=25) as session:
        shown = session.reset(7)
        total = sum(int(word.strip(",?")) for word in shown.split() if word.strip(",?").isdigit())
        assert session.step(str(total)).reward == 1.0


@pytest.mark.parametrize(("source", "name"), [(NUMPY, "numpy"), (GYMNASIUM, "gymnasium")], ids=["numpy", "gymnasium"])
def test_package_that_the_recipe_does_not_allow_is_refused_by_name(sandbox: Sandbox, source: str, name: str) -> None:
    verdict = judge(sandbox, source, HINT)

    assert verdict.rule == "imports"
    assert f"import of {name}" in verdict.evidence


def test_gate_command_judges_a_file_with_the_packages_that_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "arrays.py"
    file.write_text(NUMPY)
    command = ["gate", str(file), "--hint", HINT, "--json"]

    assert run_app(command) == 1
    refused = json.loads(capsys.readouterr().out)
    assert (refused["rule"], "import of numpy" in refused["evidence"]) == ("imports", True)
    assert run_app([*command, "--packages", "numpy", "--packages", "gymnasium"]) == 0
    assert json.loads(capsys.readouterr().out)["admitted"]
    assert run_app([*command, "--packages", "requests"]) == 2
    assert "no environment may import requests" in capsys.readouterr().err


@pytest.fixture(scope="module")
def drill() -> Iterator[Drill]:
    """Canaries around jails that hold both packages; whatever an attack left on the host fails the module."""
    opened = Drill(PACKAGES)
    yield opened
    assert opened.close() == []


def one_of_each_barrier() -> list[Attack]:
    """The first attack of each barrier, with numpy loaded before it; one of memory with gymnasium too."""
    chosen = [next(attack for attack in ATTACKS if attack.barrier is barrier) for barrier in {one.barrier: 0 for one in ATTACKS}]
    loaded = [replace(attack, program=f"import numpy\n{attack.program}") for attack in chosen]
    heavy = next(attack for attack in loaded if attack.barrier is Barrier.ADDRESS_SPACE)
    return [*loaded, replace(heavy, name=f"{heavy.name} beside gymnasium", program=f"import gymnasium\n{heavy.program}")]


@pytest.mark.parametrize("attack", one_of_each_barrier(), ids=lambda attack: attack.name)
def test_attack_with_packages_loaded_is_stopped_by_one_of_its_barriers(drill: Drill, attack: Attack) -> None:
    tried = drill.carry_out(attack)

    # numpy needs a larger address space: what fills memory may meet the jail's own limit first
    assert tried.outcome.startswith(tuple(layer.outcome for layer in attack.layers)), tried.outcome
    assert tried.trouble == ""


def test_package_that_the_recipe_does_not_allow_is_not_in_the_jail() -> None:
    assert build_recipe({}).sandbox.packages == ()
    plain = open_sandbox("zygote")
    try:
        with pytest.raises(SessionEnd) as caught, plain.open(NUMPY, max_turns=25) as session:
            session.reset(1)
    finally:
        plain.close()

    assert caught.value.reason is EndReason.ENV_ERROR
    assert "No module named 'numpy'" in caught.value.evidence


def test_package_that_nobody_may_allow_is_told() -> None:
    with pytest.raises(SandboxError, match="no environment may import requests"):
        open_sandbox("zygote", packages=("requests",))
