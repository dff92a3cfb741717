"""Policies as ordinary Hugging Face folders below one place, safetensors only, known by the digest of their files.

In: folders of a policy, or a PolicyPublished record. Out: a digest and a place, or a local folder whose digest was checked.
Called by the trainer (publish, prune), the samplers and the commands (fetch). A policy appears whole or not at all: it is
written as a draft (infra/durable.py). What is covered: no pickled weights, no remote code, no links, nothing
outside the place, no other bytes than the digest names. Not covered: a model that is bad but whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from infra.durable import DRAFT, copy_durably, draft_folder, write_error
from schemas.errors import ModelError, PolicyError, SettingsError
from schemas.train import PolicyPublished

WEIGHTS = ".safetensors"
SUFFIXES = frozenset({WEIGHTS, ".json", ".txt", ".jinja", ".model"})
# Keys of config.json by which transformers would fetch code: classes from a repository, and (where they name one) kernels.
CODE_KEYS = ("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
NOT_POLICY = frozenset({"README.txt", "LICENSE.txt", "optimizer.json", "trainer_state.json"})
DIGEST_IN_NAME = 16
_FOLDER = re.compile(r"v(\d{8})-[0-9a-f]{16}")


class PolicyStore:
    """The policies of a run below `place`, a local folder or a mounted one (`file://` is understood)."""

    def __init__(self, place: str) -> None:
        path = place.removeprefix("file://")
        if "://" in path:
            raise SettingsError(f"the policy place {place} is no folder", "Name a folder that all machines of the run mount")
        self.place = Path(path).expanduser().absolute()

    def publish(self, version: int, folder: Path) -> tuple[str, str]:
        """Copies the policy in `folder` below the place; its digest and its own place. Repeating it changes nothing.

        Raises ModelError (no usable policy), DiskFullError (what stood there stays whole), PolicyError (other file errors).
        """
        files = policy_files(folder)
        digest = files_digest(folder, files)
        target = self.place / f"v{version:08d}-{digest[:DIGEST_IN_NAME]}"
        if self._is_whole(target, digest):
            return digest, str(target)
        try:
            with draft_folder(self.place, str(version)) as draft:
                for name in files:
                    copy_durably(folder / name, draft.folder / name)
                draft.keep(target, replace=True)  # what stands there is a damaged copy of an earlier try
        except OSError as problem:
            raise write_error(problem, f"policy {version} below {self.place}") from problem
        return digest, str(target)

    def fetch(self, published: PolicyPublished) -> Path:
        """The local folder of a published policy. Raises PolicyError: it is missing, elsewhere, or differs from its digest."""
        folder = Path(published.place.removeprefix("file://")).absolute()
        if folder.parent.resolve() != self.place.resolve() or not _FOLDER.fullmatch(folder.name):
            raise PolicyError(f"policy {published.version} names {published.place}, which is not below {self.place}")
        linked = next((path for path in (folder, *folder.glob("*")) if path.is_symlink()), None)
        if linked is not None:
            raise PolicyError(f"policy {published.version}: {linked} is a link", "A policy is files in its own folder")
        try:
            found = files_digest(folder, policy_files(folder))
        except (ModelError, OSError) as problem:
            raise PolicyError(
                f"policy {published.version} at {folder} can't be used: {problem}", "Mount the policy place of the run here"
            ) from problem
        if found != published.digest:
            raise PolicyError(
                f"policy {published.version} at {folder} has digest {found[:16]}, published was {published.digest[:16]}",
                "Restart the trainer: it publishes the version again from its checkpoint",
            )
        return folder

    def versions(self) -> dict[int, list[Path]]:
        """The folders of the policies that stand here, by version."""
        found: dict[int, list[Path]] = {}
        for folder in sorted(self.place.iterdir()) if self.place.is_dir() else []:
            if match := _FOLDER.fullmatch(folder.name):
                found.setdefault(int(match[1]), []).append(folder)
        return found

    def find(self, version: int) -> Path | None:
        """The folder of a version whose files have the digest in its name; None where none is whole."""
        for folder in self.versions().get(version, []):
            with contextlib.suppress(ModelError, OSError):
                if folder.name.endswith(files_digest(folder, policy_files(folder))[:DIGEST_IN_NAME]):
                    return folder
        return None

    def prune(self, keep_versions: Iterable[int]) -> list[int]:
        """Removes the policies of all other versions, and drafts of a killed trainer; the versions removed. One writer only."""
        keep = set(keep_versions)
        removed: list[int] = []
        for folder in sorted(self.place.iterdir()) if self.place.is_dir() else []:
            match = _FOLDER.fullmatch(folder.name)
            if match and int(match[1]) not in keep:
                removed.append(int(match[1]))
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.name.startswith(DRAFT):
                shutil.rmtree(folder, ignore_errors=True)
        return removed

    @staticmethod
    def _is_whole(target: Path, digest: str) -> bool:
        try:
            return files_digest(target, policy_files(target)) == digest
        except (ModelError, OSError):
            return False


def policy_files(folder: Path) -> list[str]:
    """Names of the files that make the policy in `folder`, sorted. Raises ModelError for a folder that can't be one."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as problem:
        raise ModelError(
            f"model folder {folder} can't be read ({problem.strerror})", "Name a Hugging Face folder in model.path"
        ) from problem
    kept = [name for name in names if Path(name).suffix in SUFFIXES and name not in NOT_POLICY]
    if "config.json" not in kept:
        raise ModelError(f"model folder {folder} has no config.json", "Name a Hugging Face folder in model.path")
    if not any(name.endswith(WEIGHTS) for name in kept):
        raise ModelError(
            f"model folder {folder} has no .safetensors weights", "Save it with save_pretrained: pickled weights aren't read"
        )
    _check_config(folder / "config.json")
    _check_shards(folder, kept)
    return kept


def _check_config(path: Path) -> None:
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, OSError) as problem:
        raise ModelError(f"{path} is no JSON: {problem}", "Save the model again") from problem
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{path} names no model_type", "Save the model with save_pretrained")
    for key in CODE_KEYS:
        named = config.get(key)
        if named and (key == "auto_map" or "/" in json.dumps(named)):
            raise ModelError(f"{path} asks for remote code ({key})", "Use an architecture that transformers knows")


def _check_shards(folder: Path, names: list[str]) -> None:
    index = "model.safetensors.index.json"
    if index not in names:
        return
    try:
        wanted = set(json.loads((folder / index).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as problem:
        raise ModelError(f"{folder / index} is no index of weights: {problem}", "Save the model again") from problem
    missing = sorted(wanted - set(names))
    if missing:
        raise ModelError(f"model folder {folder} lacks {missing[0]}, which its index names", "Copy the whole folder")


def files_digest(folder: Path, names: Iterable[str]) -> str:
    """sha256 over the names and sha256 of the files, in name order."""
    digest = hashlib.sha256()
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            digest.update(f"{name}\x1f{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
