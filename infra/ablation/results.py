"""A finished arm and seed as one small JSON file, and when such a file stands in the way of a new run.

In: what a run and its evaluations gave. Out: ARM-sSEED.json, from which alone the table is made. Called by `spade ablate` and the
table. Raises SettingsError. Fields only ever get added, with defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from infra.ablation.arms import Arm
from infra.ablation.frontier import FrontierPoint
from infra.corpus.pool import recipe_digest
from infra.durable import write_whole
from infra.evaluations import ModelEvaluation
from infra.policystore import files_digest, policy_files
from infra.runs import find_folder
from schemas.errors import SettingsError
from schemas.settings import Recipe

NO_RESULT = ("name", "machine", "processes", "model.path", "corpus.path", "train.keep_every", "train.keep_policies", "evaluation")
"""Keys that change no result, or that stand for files whose digests are compared in their place."""


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a run."""

    generation: int
    valid: int
    proposed: int
    win_rate: float
    hint_win_rate: float
    regret: float
    regret_se: float
    vendi: float  # Vendi score / n
    repeats: float
    frontier: float = 0.0  # share of designs with a win rate in [.4, .6]
    helped: float = 0.0  # share of designs whose hint helps: regret above 0.6 of its standard errors
    reacted: bool = False  # its design requests were changed by the collapse control
    kinds: float = 0.0  # nano: distinct pairs of family and size among the valid designs, as a share of them
    sizes: dict[str, float] = {}  # nano: family -> mean size


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A policy of the run on the instances that choices are made on."""

    step: int
    win_rate: float


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One arm under one seed."""

    arm: str
    seed: int
    recipe_digest: str
    recipe: dict[str, Any]  # dotted keys that decide results
    base_recipe: str  # its name
    commit: str  # of the code; "" where it is in no repository
    code_digest: str
    run_id: str = ""
    pool_digest: str = ""  # of the pool's content, where the arm has one
    steps: int = 0
    planned_episodes: int = 0
    trained_episodes: int = 0
    trained_designs: int = 0
    sampled_tokens: int = 0  # of designs and plays, probes included
    trained_tokens: int = 0
    minutes: float = 0.0
    evaluations: list[ModelEvaluation] = []  # of the last policy; those of one suite and salt pair across files
    against_base: dict[str, list[float]] = {}  # suite: paired difference to the base model, and its 95 % interval
    seen: dict[str, str] = {}  # suite: a bit an instance, 1 where its data was shown in a play of this run
    curve: list[CurvePoint] = []
    generations: list[GenerationResult] = []
    frontier: list[FrontierPoint] = []

    def evaluation(self, suite: str, salt: str) -> ModelEvaluation | None:
        """The last policy's evaluation on one set of instances."""
        return next((one for one in self.evaluations if (one.suite, one.salt) == (suite, salt)), None)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of a recipe's dump."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def deciding_keys(arm: Arm, recipe: Recipe, base: Recipe) -> dict[str, Any]:
    """What decides an arm's result, by dotted key: the recipe, digests of its model and documents, and how its pool was made.

    A pool counts by its making and not by its content, so that an arm that stands is known before any pool is made again. Raises
    ModelError and CorpusError where model or documents are not there.
    """
    model = find_folder(recipe.model.path)
    flat = recipe_keys(recipe)
    flat["model.digest"] = files_digest(model, policy_files(model))
    if arm.pool is None:
        flat["corpus.digest"] = recipe_digest(recipe, find_folder(recipe.corpus.path))
    else:
        flat["corpus.digest"] = recipe_digest(base, find_folder(base.corpus.path))
        flat |= {"pool.maker": arm.pool.maker, "pool.environments": 0 if arm.pool.maker == "levels" else arm.pool.count(base)}
    return flat


def recipe_keys(recipe: Recipe) -> dict[str, Any]:
    """The recipe's own keys among these. A collapse control that is off decides nothing, however it is set."""
    none = NO_RESULT if recipe.collapse.enabled else (*NO_RESULT, "collapse")
    return {
        key: value
        for key, value in flatten(recipe.model_dump(mode="json")).items()
        if not any(key == name or key.startswith(f"{name}.") for name in none)
    }


def digest_of(deciding: Mapping[str, Any]) -> str:
    """SHA-256 of the deciding keys, in hexadecimal."""
    return sha256(msgspec.json.encode(dict(sorted(deciding.items())))).hexdigest()


def result_file(folder: Path, arm: str, seed: int) -> Path:
    """Where an arm's result stands."""
    return folder / f"{arm}-s{seed}.json"


def write_result(folder: Path, result: ArmResult) -> Path:
    """Writes the file, whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = result_file(folder, result.arm, result.seed)
    write_whole(file, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return file


def read_result(file: Path) -> ArmResult:
    """Inverse of `write_result`. Raises SettingsError naming the file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=ArmResult)
    except (OSError, msgspec.MsgspecError) as problem:
        raise SettingsError(
            f"{file} is no result of an arm ({problem})", "Move it away, and `spade ablate` makes it again"
        ) from problem


def read_results(folder: Path) -> list[ArmResult]:
    """All results of a folder, by arm and seed."""
    return [read_result(file) for file in sorted(folder.glob("*-s[0-9]*.json"))]


def stands(folder: Path, arm: str, seed: int, deciding: Mapping[str, Any]) -> ArmResult | None:
    """The arm's result where it is there. Raises SettingsError where it is that of another recipe, naming what changed."""
    file = result_file(folder, arm, seed)
    if not file.exists():
        return None
    found = read_result(file)
    if found.recipe_digest != digest_of(deciding):
        raise SettingsError(
            f"{file} is the result of another recipe ({'; '.join(changes(found.recipe, deciding))})",
            "Give this ablation another --results folder, or move the file away to run the arm again",
        )
    return found


def changes(before: Mapping[str, Any], now: Mapping[str, Any], most: int = 4) -> Sequence[str]:
    """The keys that differ, with both values."""
    keys = [key for key in sorted({*before, *now}) if _plain(before.get(key)) != _plain(now.get(key))]
    told = [f"{key} was {_shown(before, key)} and is {_shown(now, key)}" for key in keys[:most]]
    return [*told, f"{len(keys) - most} more"] if len(keys) > most else told


def _plain(value: Any) -> Any:
    """As it comes back from JSON: an integral float is an equal number, a tuple a list."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _shown(values: Mapping[str, Any], key: str) -> str:
    return str(values[key])[:60] if key in values else "not there"
