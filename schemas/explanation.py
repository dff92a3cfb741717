"""What is wrong with a recipe, in words: where the value came from, which key it is, which key was meant.

In: pydantic's error, the settings' class, the file's name, the overrides. Out: a line a problem. Called by schemas.recipes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, model: type[BaseModel], origin: str, overrides: Iterable[str]) -> list[str]:
    """Every problem of `error`, each after its source: `--set KEY` for an override, else the file and the key."""
    given = list(overrides)
    return [_problem(item, model, origin, given) for item in error.errors()]


def _problem(item: Mapping[str, Any], model: type[BaseModel], origin: str, overrides: list[str]) -> str:
    steps = [str(step) for step in item["loc"]]
    where = ".".join(steps)
    override = _cause(where, str(item["msg"]), overrides)
    source = f"--set {override}" if override else f"{origin}: {where or 'recipe'}"
    if item["type"] == "extra_forbidden":
        section = _section(model, steps[:-1])
        return f"{source}: unknown key{_meant(section, steps, listed=not override) if section else ''}"
    section = _section(model, steps)
    if item["type"] in ("model_type", "model_attributes_type") and section and steps:
        keys = ", ".join(f"{where}.{name}" for name in section.model_fields)
        return f"{source}: {where} is a section, set a key of it: {keys}"
    return f"{source}: {item['msg']}"


def _cause(where: str, message: str, overrides: list[str]) -> str:
    """The override that a problem comes from, "" where it is the file's."""
    for key in overrides:
        if where == key or where.startswith(f"{key}."):
            return key
    inside = [key for key in overrides if not where or key.startswith(f"{where}.")]
    return next((key for key in inside if key.rsplit(".", 1)[-1] in message), inside[-1] if inside and where else "")


def _section(model: type[BaseModel], steps: list[str]) -> type[BaseModel] | None:
    """The settings' class below `steps`; None where a plain value stands there."""
    for step in steps:
        field = model.model_fields.get(step)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model


def _meant(section: type[BaseModel], steps: list[str], *, listed: bool) -> str:
    """The closest key of the section, and its keys where none is close or `listed`."""
    names = list(section.model_fields)
    close = difflib.get_close_matches(steps[-1], names, n=1)
    meant = f" (did you mean {'.'.join([*steps[:-1], close[0]])}?)" if close else ""
    if close and not listed:
        return meant
    return f"{meant}; keys of {'.'.join(steps[:-1]) or 'a recipe'}: {', '.join(names)}"
