"""An ablation's children: one that fails, and one beyond its deadline, end with a cause, and nothing is left of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.cli.children import AblationError, Child, run_children
from schemas.errors import StageTimeoutError
from tests.processlist import command_lines


def test_a_child_that_fails_is_named_with_its_last_line_and_the_others_are_ended(tmp_path: Path) -> None:
    log, out = tmp_path / "logs" / "child.log", tmp_path / "census.json"
    other = Child(["nano", "census", "--out", str(out)], tmp_path / "logs" / "other.log", "other")
    with pytest.raises(AblationError, match=r"first exited with 2: error: recipe nowhere does not exist.*Look at .*child\.log"):
        run_children([Child(["plan", "nowhere"], log, "first"), other], 600.0, lambda _: None)
    assert not out.exists()
    assert not [one for one in command_lines().values() if str(out) in one]


def test_a_child_beyond_its_deadline_is_ended(tmp_path: Path) -> None:
    out = tmp_path / "census.json"
    slow = Child(["nano", "census", "--out", str(out)], tmp_path / "logs" / "child.log", "slow")
    with pytest.raises(StageTimeoutError, match="slow has not ended within 0 minutes"):
        run_children([slow], 0.0, lambda _: None)
    assert not out.exists()
    assert not [one for one in command_lines().values() if str(out) in one]
