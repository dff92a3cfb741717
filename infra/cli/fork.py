"""A fork: a new run that begins with another run's policy at a step, and its optimizer where the checkpoint is kept.

In: the parent's folder, a step, overrides. Out: the fork's recipe, and in its folder a copy of the policy and a first checkpoint.
Called by `spade run --fork`. The parent is only read; it may be running. What a fork takes over: weights, optimizer and random
state, and the recipe. What it does not: open work, episodes and designs, and what the designers remember, which begins anew,
because all of that belongs to the parent's id in log and store. Raises SettingsError, DiskFullError, PolicyError, ModelError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.cli.options import read_overrides
from infra.cli.rundir import read_notes
from infra.policystore import PolicyStore
from infra.runs import parse_recipe
from schemas.errors import SettingsError
from schemas.recipes import build_recipe
from schemas.settings import Recipe

ORIGIN = "origin"  # the folder of the parent's policy in the fork's
SHOWN = 12


@dataclass(frozen=True)
class Fork:
    """What a fork takes from its parent."""

    parent_dir: Path
    parent_id: str
    at: int
    recipe: Recipe  # model.path is still the parent's
    policy: Path
    anew: str  # why the optimizer begins anew; "" where it may be taken over

    def begin(self, run_dir: Path, run_id: str) -> tuple[Recipe, str]:
        """Copies policy and checkpoint into the fork's folder; its recipe, and a line that says what was taken over."""
        _, place = PolicyStore(str((run_dir / ORIGIN).resolve())).publish(0, self.policy)
        anew = self.anew or self._take_optimizer(run_dir, run_id)
        optimizer = f"the optimizer begins anew ({anew})" if anew else "the optimizer goes on from its checkpoint"
        recipe = build_recipe(self.recipe.model_dump(), {"model.path": place}, f"the fork of {self.parent_id}")
        steps = recipe.schedule.steps
        return recipe, (
            f"fork of {self.parent_id} at step {self.at}: version 0 is its policy {self.at}, {optimizer}, memory begins anew; "
            f"{steps} steps to go, counted from 0"
        )

    def _take_optimizer(self, run_dir: Path, run_id: str) -> str:
        """Writes the fork's first checkpoint; why that is not possible, or ""."""
        from trainer.checkpoint import CheckpointStore

        parent = CheckpointStore(self.parent_dir / "checkpoints" / self.parent_id)
        own = CheckpointStore((run_dir / "checkpoints" / run_id).resolve())
        return "" if own.begin_from(run_id, parent, self.parent_id, self.at) else f"no whole checkpoint of step {self.at} is kept"


def plan_fork(parent_dir: Path, at: int, pairs: Sequence[str] | None) -> Fork:
    """The fork of the run in `parent_dir` at step `at`, its recipe the parent's under `pairs` (KEY=VALUE)."""
    notes = read_notes(parent_dir)
    parent = parse_recipe(notes.recipe_json, notes.run_id)
    overrides = read_overrides(list(pairs or ()))
    _check_step(parent, notes.run_id, at)
    if any(key == "model" or key.startswith("model.") for key in overrides):
        raise SettingsError("--set model: a fork's model is its parent's policy", "Leave it away, or start a run of its own")
    policies = PolicyStore(str((parent_dir / "policies").resolve()))
    policy = policies.find(at)
    if policy is None:
        raise SettingsError(
            f"run {notes.run_id} keeps no whole policy of step {at}; forks can begin at {_kept(policies, parent)}",
            "train.keep_every in a run's recipe says how many are kept for good",
        )
    recipe = build_recipe(parent.model_dump(), _with_steps(parent, notes.run_id, at, overrides), f"the fork of {notes.run_id}")
    anew = "train.dtype is another one" if recipe.train.dtype != parent.train.dtype else ""
    if recipe.train.lora_rank or parent.train.lora_rank:
        anew = "adapters begin anew on the merged policy"
    return Fork(parent_dir, notes.run_id, at, recipe, policy, anew)


def _check_step(parent: Recipe, run_id: str, at: int) -> None:
    interval, steps = parent.schedule.interval, parent.schedule.steps
    if at > steps:
        raise SettingsError(f"--at {at}: run {run_id} has {steps} steps", f"Name a step from 0 to {steps}")
    if at % interval:
        raise SettingsError(
            f"--at {at} lies within a generation of run {run_id}, which serves {interval} steps: a fork inherits no open work",
            f"Name a multiple of {interval}, such as {at // interval * interval}",
        )


def _with_steps(parent: Recipe, run_id: str, at: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides, and the steps that the parent had left where none are named."""
    if "schedule.steps" in overrides or "schedule" in overrides:
        return overrides
    left = parent.schedule.steps - at
    if left <= 0:
        raise SettingsError(f"run {run_id} has no steps left after step {at}", "Name the fork's with --set schedule.steps=NUMBER")
    return {**overrides, "schedule.steps": left}


def _kept(policies: PolicyStore, parent: Recipe) -> str:
    steps = range(0, parent.schedule.steps + 1, parent.schedule.interval)
    kept = [version for version in sorted(policies.versions()) if version in steps]
    shown = [str(version) for version in kept[-SHOWN:]]
    return ", ".join((["..."] if len(kept) > SHOWN else []) + shown) or "no step"
