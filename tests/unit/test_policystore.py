"""A policy store publishes whole folders, gives back only what its digest names, and takes no code."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from infra.policystore import PolicyStore
from schemas.errors import DiskFullError, ModelError, PolicyError, SettingsError
from schemas.train import Canary, PolicyPublished


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(str(tmp_path / "policies"))


def record(version: int, digest: str, place: str) -> PolicyPublished:
    canary = Canary(tokens=b"", logprobs=b"")
    return PolicyPublished(run_id="r", event_id="e", version=version, digest=digest, place=place, canary=canary)


def test_a_published_policy_is_fetched_whole(store: PolicyStore, model: Path) -> None:
    digest, place = store.publish(3, model)
    folder = store.fetch(record(3, digest, place))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_publishing_again_changes_nothing_and_mends_a_damaged_copy(store: PolicyStore, model: Path) -> None:
    first = store.publish(1, model)
    stamp = Path(first[1]).stat().st_mtime_ns
    assert store.publish(1, model) == first
    assert Path(first[1]).stat().st_mtime_ns == stamp
    (Path(first[1]) / "model.safetensors").write_bytes(b"weighty")
    assert store.publish(1, model) == first
    assert store.fetch(record(1, *first)).name == Path(first[1]).name


def test_the_digest_is_of_the_content_and_the_same_for_every_version(store: PolicyStore, model: Path) -> None:
    first, second = store.publish(1, model)[0], store.publish(2, model)[0]
    (model / "model.safetensors").write_bytes(b"other")
    assert first == second != store.publish(3, model)[0]


def test_a_changed_file_is_refused(store: PolicyStore, model: Path) -> None:
    digest, place = store.publish(1, model)
    (Path(place) / "config.json").write_text(json.dumps({"model_type": "other"}))
    with pytest.raises(PolicyError, match="digest"):
        store.fetch(record(1, digest, place))


def test_a_place_outside_the_store_is_refused(store: PolicyStore, model: Path, tmp_path: Path) -> None:
    digest, place = store.publish(1, model)
    elsewhere = PolicyStore(str(tmp_path / "elsewhere")).publish(1, model)[1]
    for bad in (elsewhere, str(model), f"{place}/../../model"):
        with pytest.raises(PolicyError, match="not below"):
            store.fetch(record(1, digest, bad))


def test_a_removed_policy_is_named(store: PolicyStore, model: Path) -> None:
    digest, place = store.publish(1, model)
    assert store.prune([0]) == [1]
    with pytest.raises(PolicyError, match="policy 1 at"):
        store.fetch(record(1, digest, place))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "no .safetensors"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "x", "auto_map": {"A": "b.C"}}'), "remote code"),
        (lambda folder: (folder / "config.json").write_text("{"), "no JSON"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
            "lacks b",
        ),
    ],
)
def test_a_folder_that_is_no_policy_is_named_with_its_fault(store: PolicyStore, model: Path, change: Any, message: str) -> None:
    change(model)
    with pytest.raises(ModelError, match=message):
        store.publish(1, model)
    assert not store.place.exists() or not list(store.place.iterdir())


def test_a_missing_folder_is_a_model_error(store: PolicyStore, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent can't be read"):
        store.publish(0, tmp_path / "absent")


def test_code_and_pickles_beside_the_weights_are_left_behind(store: PolicyStore, model: Path) -> None:
    for name in ("modeling.py", "optimizer.bin", "scheduler.pt"):
        (model / name).write_text("x")
    _, place = store.publish(0, model)
    assert sorted(path.name for path in Path(place).iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_full_disk_leaves_the_old_policy_whole_and_no_draft(
    store: PolicyStore, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.publish(1, model)
    (model / "model.safetensors").write_bytes(b"newer")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="policy 2"):
        store.publish(2, model)
    monkeypatch.undo()
    assert store.fetch(record(1, *first)).is_dir()
    assert len(list(store.place.iterdir())) == 1


def test_prune_keeps_the_named_versions_and_clears_drafts(store: PolicyStore, model: Path) -> None:
    for version in range(5):
        store.publish(version, model)
    (store.place / ".draft-9-abc").mkdir()
    (store.place / "notes").mkdir()
    assert store.prune({0, 3, 4}) == [1, 2]
    assert sorted(path.name[:9] for path in store.place.iterdir()) == ["notes", "v00000000", "v00000003", "v00000004"]


def test_an_object_store_address_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="s3://bucket"):
        PolicyStore("s3://bucket/policies")
