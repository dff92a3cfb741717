"""docs/OPERATIONS.md quotes lines that the code prints: each piece between two gaps stands in some string of the code."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "infra", "streams", "workers", "trainer")
TEXT = (PROJECT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
SHORTEST = 4  # characters of a piece that says anything


def quoted_lines() -> list[str]:
    """The code spans of the tables' second columns that have a gap or a space."""
    rows = [line.split(" | ")[1] for line in TEXT.splitlines() if line.startswith("| ") and line.count(" | ") >= 2]
    spans = [span for row in rows for span in re.findall(r"`((?:[^`]|`spade`)+)`", row)]
    return sorted({span for span in spans if " " in span and not span.startswith(("spade ", "--"))})


@functools.cache
def strings() -> frozenset[str]:
    """Every literal text of the code; a formatted string gives the pieces between its values."""
    found: set[str] = set()
    for package in PACKAGES:
        for file in (PROJECT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return frozenset(found)


def test_the_tables_quote_something() -> None:
    assert len(quoted_lines()) > 30


@pytest.mark.parametrize("line", quoted_lines())
def test_each_piece_of_a_quoted_line_stands_in_the_code(line: str) -> None:
    for piece in line.split("…"):
        said = piece.strip("; ")
        if len(said) >= SHORTEST:
            assert any(said in text for text in strings()), f"{said!r} is printed nowhere"


@pytest.mark.parametrize("setting", ["processes.restarts", "processes.stand_still_s", "train.batch_deadline_s", "memory.wait_s"])
def test_settings_that_are_named_exist(setting: str) -> None:
    from schemas.settings import Recipe

    section, key = setting.split(".")
    assert setting in TEXT
    assert key in type(getattr(Recipe(), section)).model_fields
