"""What is read back is not trusted: no file of a checkpoint, a policy or a model runs code, and each refusal names the file.

Every forgery here is a thorough one: where a digest is asked for it is the right one, as of someone who could write all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.policystore import PolicyStore, files_digest, policy_files
from infra.runs import find_folder
from schemas.errors import CheckpointError, ModelError, PolicyError
from schemas.train import Canary, PolicyPublished
from trainer.checkpoint import MANIFEST, PROGRESS, TENSORS, CheckpointStore, Progress, read_checkpoint

NANO = find_folder("trainer/nano/model")


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (os.mkdir, (str(self.marker),))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Stands only where some code of a file has run."""
    return tmp_path / "code-has-run"


@pytest.fixture
def bomb(marker: Path) -> bytes:
    data = pickle.dumps(Bomb(marker))
    pickle.loads(data)
    assert marker.is_dir(), "the bomb goes off where it is unpickled"
    marker.rmdir()
    return data


def zipped(data: bytes) -> bytes:
    """As torch.save writes a pickle."""
    import io
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return held.getvalue()


def tensors_file(header: Any, body: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


FORGED: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda bomb: bomb,
    "a pickle as torch saves it": zipped,
    "a pickle behind a header's length": lambda bomb: tensors_file(bomb),
    "a tensor beyond the file's end": lambda _: tensors_file({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}),
    "a tensor of another size": lambda _: tensors_file({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}, bytes(4)),
    "a header longer than the file": lambda _: struct.pack("<Q", 2**40) + b"{}",
    "an unknown type": lambda _: tensors_file({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "nothing": lambda _: b"",
}


def forge_checkpoint(store: CheckpointStore, name: str, data: bytes) -> Path:
    """A newer checkpoint than any, with `data` in place of one file, and every digest right."""
    import torch

    kept = store.save(Progress(run_id="r", last=7), {"a": torch.zeros(2)})
    (kept / name).write_bytes(data)
    digests = {one: hashlib.sha256((kept / one).read_bytes()).hexdigest() for one in (TENSORS, PROGRESS)}
    manifest = json.dumps(digests, sort_keys=True).encode()
    if name != MANIFEST:
        (kept / MANIFEST).write_bytes(manifest)
    sealed = hashlib.sha256((kept / MANIFEST).read_bytes()).hexdigest()[:16]
    return kept.rename(kept.parent / f"step-00000008-{sealed}")


@pytest.mark.parametrize("name", [TENSORS, PROGRESS, MANIFEST])
@pytest.mark.parametrize("kind", FORGED)
def test_a_checkpoint_of_another_kind_is_refused_by_file_runs_nothing_and_the_one_before_is_taken(
    tmp_path: Path, marker: Path, bomb: bytes, kind: str, name: str
) -> None:
    import torch

    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(Progress(run_id="r", last=1), {"a": torch.ones(2)})
    forged = forge_checkpoint(store, name, FORGED[kind](bomb))
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(forged)
    assert str(forged / name) in refused.value.cause
    found = store.load("r")
    assert found is not None
    assert (found[0].last, found[1]["a"].tolist()) == (1, [1.0, 1.0])
    assert not marker.exists()


def test_a_checkpoint_folder_of_another_name_is_refused(tmp_path: Path) -> None:
    import torch

    kept = CheckpointStore(tmp_path).save(Progress(run_id="r"), {"a": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"manifest\.json does not have the digest in its folder's name"):
        read_checkpoint(kept.rename(tmp_path / f"{kept.name[:-16]}{'0' * 16}"))


def forge_policy(store: PolicyStore, files: dict[str, bytes]) -> PolicyPublished:
    """The nano model with other files, laid below the store's place with the digest that they have."""
    draft = store.place / "draft"
    draft.mkdir(parents=True)
    for name in policy_files(NANO):
        (draft / name).write_bytes((NANO / name).read_bytes())
    for name, data in files.items():
        (draft / name).write_bytes(data)
    kept = [one.name for one in draft.iterdir() if one.suffix not in (".py", ".bin", ".pt")]
    digest = files_digest(draft, kept)
    place = draft.rename(store.place / f"v00000004-{digest[:16]}")
    canary = Canary(tokens=bytes(8), logprobs=bytes(4))
    return PolicyPublished(run_id="r", event_id="e", version=4, digest=digest, place=str(place), canary=canary)


def remote(key: str, value: Any, **more: Any) -> bytes:
    config = json.loads((NANO / "config.json").read_bytes())
    return json.dumps({**config, key: value, **more}).encode()


def evil_module(marker: Path) -> bytes:
    return f"import os; os.mkdir({str(marker)!r})\nclass EvilModel: pass\nclass EvilConfig: pass\n".encode()


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(str(tmp_path / "policies"))


@pytest.mark.parametrize("key", ["auto_map", "attn_implementation", "_attn_implementation"])
def test_a_policy_that_asks_for_code_is_refused_by_its_config(store: PolicyStore, marker: Path, key: str) -> None:
    named = {"AutoModelForCausalLM": "modeling_evil.EvilModel"} if key == "auto_map" else "someone/kernel"
    forged = forge_policy(store, {"config.json": remote(key, named), "modeling_evil.py": evil_module(marker)})
    with pytest.raises(PolicyError, match=rf"policy 4 at .*config\.json asks for remote code \({key}\)"):
        store.fetch(forged)
    assert not marker.exists()


def test_a_policy_with_a_link_in_it_is_refused(store: PolicyStore, tmp_path: Path) -> None:
    forged = forge_policy(store, {})
    weights = Path(forged.place) / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PolicyError, match=r"policy 4: .*model\.safetensors is a link"):
        store.fetch(forged)
    linked = Path(forged.place)
    weights.unlink()
    (tmp_path / "elsewhere").rename(weights)
    linked.rename(tmp_path / "folder")
    linked.symlink_to(tmp_path / "folder")
    with pytest.raises(PolicyError, match=rf"policy 4: .*{linked.name} is a link"):
        store.fetch(forged)


@pytest.mark.parametrize(
    "place",
    [
        "{place}/../../../etc",
        "{place}/..",
        "{outside}",
        "file://{outside}",
        "{outside}/../policies/../outside/{name}",
        "/",
        "",
        ".",
    ],
)
def test_a_publication_that_names_another_place_is_refused_by_it(store: PolicyStore, tmp_path: Path, place: str) -> None:
    import msgspec

    forged = forge_policy(store, {})
    outside = tmp_path / "outside" / Path(forged.place).name
    outside.parent.mkdir()
    named = place.format(place=forged.place, outside=outside, name=outside.name)
    with pytest.raises(PolicyError) as refused:
        store.fetch(msgspec.structs.replace(forged, place=named))
    assert f"names {named}, which is not below {store.place}" in refused.value.cause


@pytest.mark.parametrize("kind", FORGED)
def test_weights_of_another_kind_are_refused_by_sampler_and_trainer_and_run_nothing(
    store: PolicyStore, marker: Path, bomb: bytes, kind: str
) -> None:
    from trainer.model import load_language_model
    from workers.samplers.transformers import TransformersSampler

    forged = forge_policy(store, {"model.safetensors": FORGED[kind](bomb), "pytorch_model.bin": zipped(bomb)})
    folder = store.fetch(forged)  # its digest is right
    sampler = TransformersSampler()
    with pytest.raises(ModelError) as refused:
        sampler.load(forged, folder)
    assert str(folder) in refused.value.cause
    assert sampler.policy_version == -1
    with pytest.raises(ModelError) as refused:
        load_language_model(folder, "float32")
    assert str(folder) in refused.value.cause
    assert not marker.exists()


def test_code_and_pickles_beside_whole_weights_are_never_read(store: PolicyStore, marker: Path, bomb: bytes) -> None:
    from trainer.model import load_language_model
    from workers.samplers.transformers import TransformersSampler

    beside = {name: evil_module(marker) for name in ("modeling_evil.py", "configuration_qwen3.py", "__init__.py", "setup.py")}
    forged = forge_policy(store, {**beside, "pytorch_model.bin": zipped(bomb), "training_args.bin": bomb})
    folder = store.fetch(forged)
    TransformersSampler().load_unpublished(folder, 4, forged.digest)
    load_language_model(folder, "float32")
    assert not marker.exists()


def test_a_model_folder_that_only_its_own_code_could_load_is_refused_without_running_it(tmp_path: Path, marker: Path) -> None:
    from trainer.model import load_language_model
    from workers.samplers.transformers import TransformersSampler

    folder = tmp_path / "model"
    folder.mkdir()
    classes = {"AutoConfig": "modeling_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.EvilModel"}
    (folder / "config.json").write_bytes(remote("auto_map", classes, model_type="evil"))
    (folder / "modeling_evil.py").write_bytes(evil_module(marker))
    (folder / "model.safetensors").write_bytes((NANO / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"config\.json asks for remote code"):
        load_language_model(folder, "float32")
    with pytest.raises(ModelError) as refused:
        TransformersSampler().load_unpublished(folder, -1, "")
    assert str(folder) in refused.value.cause
    assert not marker.exists()
