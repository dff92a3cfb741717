"""What a fork takes from its parent, and which forks are refused and why. Folders made by hand, no processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from infra.cli.fork import plan_fork
from infra.cli.rundir import Notes, write_notes
from infra.policystore import PolicyStore
from schemas.errors import SettingsError
from schemas.recipes import build_recipe
from schemas.train import StepFinished
from trainer.checkpoint import CheckpointStore, Progress

PARENT = "parent-1"
STEPS, INTERVAL = 12, 4


def state_of(version: int) -> dict[str, torch.Tensor]:
    return {"weight/a": torch.full((2,), float(version)), "exp_avg/0": torch.tensor([version + 0.5]), "random": torch.zeros(3)}


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A run with policies 0, 4 and 7 and checkpoints 4 and 7."""
    folder, model = tmp_path / "parent", tmp_path / "model"
    recipe = build_recipe(
        {"name": "small", "schedule": {"steps": STEPS, "interval": INTERVAL, "delay": 4}, "model": {"path": str(model)}}
    )
    write_notes(folder, Notes(run_id=PARENT, recipe_json=recipe.model_dump_json()))
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "x"}))
    checkpoints = CheckpointStore(folder / "checkpoints" / PARENT)
    for version in (0, 4, 7):
        (model / "model.safetensors").write_bytes(b"weights %d" % version)
        PolicyStore(str(folder / "policies")).publish(version, model)
        if version:
            told = StepFinished(run_id=PARENT, event_id="e", step=version - 1, drain=False)
            checkpoints.save(Progress(run_id=PARENT, last=version - 1, finished=told, steps=version), state_of(version))
    return folder


def test_fork_begins_with_the_parents_weights_optimizer_and_recipe(parent: Path, tmp_path: Path) -> None:
    fork = plan_fork(parent, 4, ["train.learning_rate=0.5"])
    assert fork.recipe.schedule.steps == STEPS - 4
    recipe, line = fork.begin(tmp_path / "fork", "fork-1")
    assert line == (
        "fork of parent-1 at step 4: version 0 is its policy 4, the optimizer goes on from its checkpoint, memory begins anew; "
        "8 steps to go, counted from 0"
    )
    assert recipe.train.learning_rate == 0.5
    assert (Path(recipe.model.path) / "model.safetensors").read_bytes() == b"weights 4"
    assert Path(recipe.model.path).is_relative_to(tmp_path / "fork")
    found = CheckpointStore(tmp_path / "fork" / "checkpoints" / "fork-1").load("fork-1")
    assert found is not None
    assert found[0] == Progress(run_id="fork-1")
    assert {name: tensor.tolist() for name, tensor in found[1].items()} == {n: t.tolist() for n, t in state_of(4).items()}


@pytest.mark.parametrize(
    ("at", "pairs", "why"),
    [
        (0, (), "no whole checkpoint of step 0 is kept"),
        (4, ("train.dtype=bfloat16",), "train.dtype is another one"),
        (4, ("train.lora_rank=8",), "adapters begin anew on the merged policy"),
    ],
)
def test_optimizer_that_can_not_be_taken_over_begins_anew_and_the_fork_says_why(
    parent: Path, tmp_path: Path, at: int, pairs: tuple[str, ...], why: str
) -> None:
    _, line = plan_fork(parent, at, pairs).begin(tmp_path / "fork", "fork-1")
    assert f"the optimizer begins anew ({why})" in line
    assert CheckpointStore(tmp_path / "fork" / "checkpoints" / "fork-1").load("fork-1") is None


@pytest.mark.parametrize(
    ("at", "pairs", "message"),
    [
        (6, (), r"--at 6 lies within a generation of run parent-1, which serves 4 steps.*multiple of 4, such as 4"),
        (8, (), r"keeps no whole policy of step 8; forks can begin at 0, 4\. train\.keep_every"),
        (16, (), r"--at 16: run parent-1 has 12 steps"),
        (4, ("model.path=/elsewhere",), r"--set model: a fork's model is its parent's policy"),
        (4, ("schedule.steps=7",), r"steps \(7\) must be a multiple of interval \(4\)"),
        (4, ("no.such=1",), r"--set no\.such: unknown key"),
    ],
)
def test_fork_that_can_not_begin_is_refused_with_the_reason(parent: Path, at: int, pairs: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_fork(parent, at, pairs)


def test_fork_at_the_parents_end_needs_its_own_steps(parent: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights 12")
    PolicyStore(str(parent / "policies")).publish(12, tmp_path / "model")
    with pytest.raises(SettingsError, match="has no steps left after step 12"):
        plan_fork(parent, 12, ())
    assert plan_fork(parent, 12, ["schedule.steps=4"]).recipe.schedule.steps == 4


def test_damaged_policy_is_none(parent: Path) -> None:
    (folder,) = PolicyStore(str(parent / "policies")).versions()[4]
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(SettingsError, match="keeps no whole policy of step 4"):
        plan_fork(parent, 4, ())
