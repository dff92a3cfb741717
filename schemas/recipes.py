"""A recipe from its file: short TOML over the defaults that its algorithm, setting and pool call for.

In: a TOML file or a tree of values, and overrides by dotted key. Out: a Recipe. `algorithm = "published"` changes the defaults in
which the published system differs. Raises SettingsError, which names file, key and fix.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.errors import SettingsError
from schemas.explanation import explain
from schemas.settings import TOOLS_SKILLS, Recipe

PUBLISHED_DEFAULTS: dict[str, Any] = {
    "schedule": {"interval": 4, "delay": 4, "lag": 0, "lead": 0, "memory_lag": 1},
    "design": {"hint_by_second_call": True, "train_rejected": False, "regret_bound": "mean"},
    "rollout": {
        "hint_plays": 16,
        "paired": False,
        "unterminated_return": "zero",
        "advantage_group": "environment",
    },
    "train": {"aggregate": "sample", "logits": "plain"},
    "memory": {
        "window": 200,
        "lcb_errors": 0.0,
        "diversity": "none",
        "negatives": ["easy-or-hard"],
        "age_out": 0,
        "probe_environments": 0,
    },
    "collapse": {"enabled": False},
}

POOL_DEFAULTS: dict[str, Any] = {
    "designer": "frozen",
    "design": {"attempts": 1, "hint_by_second_call": False, "duplicate": "penalise", "train_rejected": False},
    "memory": {"enabled": False},
}

TOOLS_DEFAULTS: dict[str, Any] = {"skills": TOOLS_SKILLS, "corpus": {"max_words": 4000}}
"""The setting tools over the defaults, which are those of games."""


def load_recipe(path: Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in a TOML file. Raises SettingsError that names the file, the key and the fix."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"recipe {path} does not exist", "`spade run --help` lists the shipped recipes") from None
    except OSError as problem:
        raise SettingsError(f"recipe {path} can't be read ({problem.strerror})", "Name a TOML file") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"recipe {path} is not TOML: {error}", "Correct the file") from error
    values.setdefault("name", path.stem)
    return build_recipe(values, overrides, str(path))


def build_recipe(values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, origin: str = "recipe") -> Recipe:
    """Defaults of algorithm, setting and pool, under the recipe's values, under dotted overrides ({"schedule.steps": 20})."""
    merged = dict(values)
    for dotted, value in (overrides or {}).items():
        _set(merged, dotted.split("."), value)
    if merged.get("pool") in ("fixed", "procedural"):
        merged = _merge(POOL_DEFAULTS, merged)
    if merged.get("algorithm") == "published":
        merged = _merge(PUBLISHED_DEFAULTS, merged)
    if merged.get("setting") == "tools":
        merged = _merge(TOOLS_DEFAULTS, merged)
    try:
        return Recipe.model_validate(merged)
    except ValidationError as error:
        faults = explain(error, Recipe, origin, overrides or ())
        keys = "the keys" if len(faults) > 1 else "the key"
        raise SettingsError("; ".join(faults), f"Correct or remove {keys}", faults) from error


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = _merge(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result


def _set(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        branch = tree.get(key)
        tree[key] = dict(branch) if isinstance(branch, Mapping) else {}
        tree = tree[key]
    tree[keys[-1]] = value
