"""docs/TRAINING.md tells of every option of a recipe, and of every shipped recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from infra.cli.options import shipped_recipes
from schemas.settings import Recipe, SamplingChoice

TEXT = (Path(__file__).parents[2] / "docs/TRAINING.md").read_text(encoding="utf-8")


def options_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names; a distribution counts as one option."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not SamplingChoice:
            yield from options_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_option_is_explained() -> None:
    table = TEXT.split("## Options of a recipe", 1)[1]
    told = {
        name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`([\w.*]+)`", line.split("|")[1])
    }
    wanted = {name for name in options_of(Recipe) if not name.startswith("processes.")} | {"processes.*"}
    assert wanted - told == set(), "docs/TRAINING.md, options of a recipe: these are not explained"


def test_every_shipped_recipe_stands_in_the_table_of_machines() -> None:
    table = TEXT.split("## Which recipe for which machine", 1)[1].split("##", 1)[0]
    assert [name for name in shipped_recipes() if name not in table] == []
