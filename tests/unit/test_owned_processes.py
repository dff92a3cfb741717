"""What notes a process: there before it serves, as it was where it fails, and never in the way of another one's note."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.local.processes import noted


def fail_while(file: Path, act: Callable[[], object]) -> None:
    """A start that notes itself, sees what `act` does, and fails."""
    with noted(file, {"pid": 1}):
        assert file.read_bytes() == b'{"pid": 1}'
        act()
        raise OSError("the port is in use")


@pytest.mark.parametrize("former", [None, b"former"])
def test_a_start_that_fails_leaves_the_note_as_it_was(tmp_path: Path, former: bytes | None) -> None:
    file = tmp_path / "broker.json"
    if former is not None:
        file.write_bytes(former)
    with pytest.raises(OSError, match="in use"):
        fail_while(file, lambda: None)
    assert (file.read_bytes() if file.exists() else None) == former


def test_the_loser_of_two_starts_leaves_the_winners_note(tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    with pytest.raises(OSError, match="in use"):
        fail_while(file, lambda: file.write_bytes(b'{"pid": 2}'))
    assert file.read_bytes() == b'{"pid": 2}'
