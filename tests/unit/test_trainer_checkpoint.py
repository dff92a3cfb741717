"""Checkpoints are there whole or not at all, and what is damaged is never loaded."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schemas.common import Reference
from schemas.errors import DiskFullError, TrainingError
from schemas.train import StepFinished
from trainer.checkpoint import CheckpointStore, Progress, advance

TENSORS = {"weight/a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "step/0": torch.tensor(4.0)}


def progress(last: int, **more: object) -> Progress:
    finished = StepFinished(run_id="r", event_id=f"s{last}", step=last, drain=False, trained=["x"])
    position = Reference(topic="spade-batch-ready", partition=3, offset=17, id="b")
    return Progress(run_id="r", last=last, good=last - 1, finished=finished, position=position, **more)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_a_checkpoint_comes_back_bit_for_bit_with_its_progress(store: CheckpointStore) -> None:
    store.save(progress(4), TENSORS)
    found = store.load("r")
    assert found is not None
    assert found[0] == progress(4)
    assert found[0].version == 5
    assert {name: tensor.tolist() for name, tensor in found[1].items()} == {n: t.tolist() for n, t in TENSORS.items()}


def test_no_checkpoint_gives_none(store: CheckpointStore) -> None:
    assert store.load("r") is None


@pytest.mark.parametrize("name", ["tensors.safetensors", "progress.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(store: CheckpointStore, name: str, damage: str) -> None:
    store.save(progress(1), TENSORS)
    path = store.save(progress(2), TENSORS) / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-3])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    found = store.load("r")
    assert found is not None
    assert found[0].last == 1


def test_a_draft_of_a_killed_trainer_is_no_checkpoint_and_is_cleared(store: CheckpointStore) -> None:
    store.save(progress(1), TENSORS)
    draft = store.folder / ".draft-77"
    draft.mkdir()
    (draft / "tensors.safetensors").write_bytes(b"half")
    found = store.load("r")
    assert found is not None
    assert found[0].last == 1
    store.save(progress(2), TENSORS)
    assert not draft.exists()


def test_a_full_disk_leaves_the_old_checkpoint_whole(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(progress(1), TENSORS)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="checkpoint 3"):
        store.save(progress(2), TENSORS)
    monkeypatch.undo()
    found = store.load("r")
    assert found is not None
    assert found[0].last == 1
    assert len(list(store.folder.iterdir())) == 1


def test_the_last_two_and_the_last_good_one_are_kept(store: CheckpointStore) -> None:
    for last in range(-1, 6):
        store.save(replace(progress(last), good=min(last - 1, 1)), TENSORS)
    assert sorted(int(folder.name[5:13]) for folder in store.folder.iterdir()) == [2, 5, 6]
    found = store.load("r", 2)
    assert found is not None
    assert found[0].version == 2


def test_lasting_checkpoints_are_kept_for_good(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep_every=3)
    for last in range(-1, 8):
        store.save(progress(last), TENSORS)
    assert sorted(int(folder.name[5:13]) for folder in store.folder.iterdir()) == [0, 3, 6, 7, 8]


def test_a_checkpoint_of_another_run_is_refused(store: CheckpointStore) -> None:
    store.save(progress(1), TENSORS)
    with pytest.raises(TrainingError, match="belongs to run r, not other"):
        store.load("other")


def step(number: int, *, skipped: str = "", drain: bool = False) -> StepFinished:
    return StepFinished(run_id="r", event_id="e", step=number, drain=drain, skipped=skipped)


def test_progress_counts_samples_skips_and_the_weights_that_proved_good() -> None:
    place = Reference(topic="t", partition=0, offset=5, id="b")
    first = advance(Progress(run_id="r"), step(0), place, ["agent", "agent", "designer"])
    assert (first.last, first.good, first.agent_samples, first.designer_samples, first.steps) == (0, -1, 2, 1, 1)
    empty = advance(first, step(1), place, [])
    assert (empty.last, empty.good, empty.skipped_in_row) == (1, -1, 0)
    bad = advance(advance(empty, step(2, skipped="x"), place, ["agent"]), step(3, skipped="x"), place, ["agent"])
    assert (bad.skipped_in_row, bad.good, bad.agent_samples) == (2, -1, 2)
    drained = advance(bad, step(4, drain=True), place, ["designer"])
    assert (drained.skipped_in_row, drained.good, drained.drain_steps, drained.steps) == (0, 3, 1, 4)
