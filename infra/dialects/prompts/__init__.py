"""The prompts of the chat dialects: text files with $names to fill in, below `games` and `tools` where the settings differ.

In: a setting, a file's name, values. Out: text. Values are put in as they are, in one pass: a "$" in a document means nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

FOLDER = Path(__file__).parent


def read_prompt(name: str, setting: str = "") -> str:
    """The text of a file, without the line feed at its end."""
    return _read(FOLDER / setting / f"{name}.txt")


def fill_prompt(name: str, setting: str = "", **values: str) -> str:
    """A file's text with its names filled in. Raises KeyError for one that has no value."""
    return Template(read_prompt(name, setting)).substitute(values)


def about_skill(setting: str, skill: str) -> str:
    """What a skill means in a setting; for one that has no text of its own, its name."""
    file = FOLDER / setting / "skills" / f"{'-'.join(skill.lower().split())}.txt"
    return _read(file) if file.is_file() else f"The skill is {skill}."


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8").removesuffix("\n")
