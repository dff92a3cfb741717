"""Checkpoints: weights, optimizer, random state, step and log position in one folder that is there whole or not at all.

In: tensors and a Progress. Out: a folder step-NNNNNNNN-DIGEST below the run's checkpoint folder. Called by trainer/loop. It is
written as a draft (infra/durable.py); older ones go only after that. Its name holds the digest of its
manifest, the manifest the digests of its files; tensors are safetensors and the rest JSON, so reading runs no code. Raises
DiskFullError (what stood there stays whole). Damaged checkpoints are passed over: the step is trained again, to the same weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infra.durable import DRAFT, draft_folder, write_durably, write_error
from infra.telemetry import get_logger
from schemas.common import Reference
from schemas.errors import CheckpointError, TrainingError
from schemas.train import StepFinished

if TYPE_CHECKING:
    from torch import Tensor

TENSORS, PROGRESS, MANIFEST = "tensors.safetensors", "progress.json", "manifest.json"
_FOLDER = re.compile(r"step-(\d{8})-([0-9a-f]{16})")
_log = get_logger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a run's training is."""

    run_id: str
    last: int = -1  # number of the last batch that is in the weights; -1: none
    position: Reference | None = None  # of that batch's record
    finished: StepFinished | None = None  # what is to be told of it
    skipped_in_row: int = 0
    restores_in_row: int = 0  # since a step was last applied
    good: int = -1  # `last` of the newest checkpoint whose weights gave a finite step
    steps: int = 0
    drain_steps: int = 0
    agent_samples: int = 0
    designer_samples: int = 0
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The policy version of these weights."""
        return self.last + 1


class CheckpointStore:
    """The checkpoints of one run, in a folder that only its trainer writes."""

    def __init__(self, folder: Path, keep_every: int = 0) -> None:
        """`keep_every`: versions that are multiples of it are kept for good; 0: none."""
        self.folder = folder
        self._keep_every = keep_every

    def save(self, progress: Progress, tensors: Mapping[str, Tensor]) -> Path:
        """Writes a checkpoint; durable when this returns. Then removes all but it, the one before, the last good and lasting."""
        from safetensors.torch import save

        try:
            with draft_folder(self.folder, str(progress.version)) as draft:
                digests = {
                    name: _write(draft.folder / name, data)
                    for name, data in ((TENSORS, save(dict(tensors))), (PROGRESS, msgspec.json.encode(progress)))
                }
                digest = _write(draft.folder / MANIFEST, json.dumps(digests, sort_keys=True).encode())
                target = draft.keep(self.folder / f"step-{progress.version:08d}-{digest[:16]}", replace=True)
        except OSError as problem:
            raise write_error(problem, f"checkpoint {progress.version} below {self.folder}") from problem
        self._prune(progress)
        return target

    def load(self, run_id: str, version: int | None = None) -> tuple[Progress, dict[str, Tensor]] | None:
        """The newest whole checkpoint (of that version, where one is named); None where there is none."""
        for found, folder in self._folders():
            if version is None or found == version:
                with _told_damage(folder):
                    progress, tensors = read_checkpoint(folder)
                    if progress.run_id != run_id:
                        raise TrainingError(
                            f"checkpoint {folder} belongs to run {progress.run_id}, not {run_id}", "Use another state folder"
                        )
                    return progress, tensors
        return None

    def begin_from(self, run_id: str, parent: CheckpointStore, parent_id: str, version: int) -> bool:
        """Writes this run's first checkpoint: weights, optimizer and random state of a parent's version, and nothing done yet.

        False where the parent has no whole checkpoint of it.
        """
        kept = parent.load(parent_id, version)
        if kept is not None:
            self.save(Progress(run_id=run_id), kept[1])
        return kept is not None

    def _folders(self) -> list[tuple[int, Path]]:
        """Version and folder of every checkpoint, newest first."""
        entries = self.folder.iterdir() if self.folder.is_dir() else []
        found = [(int(match[1]), entry) for entry in entries if (match := _FOLDER.fullmatch(entry.name))]
        return sorted(found, key=lambda pair: (-pair[0], pair[1].name))

    def _prune(self, progress: Progress) -> None:
        versions = sorted({version for version, _ in self._folders() if version <= progress.version}, reverse=True)
        keep = {*versions[:2], progress.good + 1}
        for version, folder in self._folders():
            lasting = self._keep_every > 0 and version % self._keep_every == 0 and version <= progress.version
            if version not in keep and not lasting:
                shutil.rmtree(folder, ignore_errors=True)
        for draft in self.folder.glob(f"{DRAFT}*"):
            shutil.rmtree(draft, ignore_errors=True)


def read_checkpoint(folder: Path) -> tuple[Progress, dict[str, Tensor]]:
    """A checkpoint whose digests hold. Raises CheckpointError naming the file that is missing, changed or of another kind."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    match = _FOLDER.fullmatch(folder.name)
    path = folder / MANIFEST
    data = {}
    try:
        manifest = path.read_bytes()
        if match is None or hashlib.sha256(manifest).hexdigest()[:16] != match[2]:
            raise CheckpointError(f"{path} does not have the digest in its folder's name")
        digests = msgspec.json.decode(manifest, type=dict[str, str])
        for path in (folder / TENSORS, folder / PROGRESS):
            data[path.name] = path.read_bytes()
            if hashlib.sha256(data[path.name]).hexdigest() != digests.get(path.name):
                raise CheckpointError(f"{path} does not have the digest in its manifest")
        progress = msgspec.json.decode(data[PROGRESS], type=Progress)
        path = folder / TENSORS
        return progress, load(data[TENSORS])
    except (OSError, ValueError, msgspec.MsgspecError, SafetensorError) as problem:
        raise CheckpointError(f"{path} can't be read as what it should be: {problem}") from problem


@contextlib.contextmanager
def _told_damage(folder: Path) -> Iterator[None]:
    """Passes over a damaged checkpoint with a warning."""
    try:
        yield
    except CheckpointError as problem:
        _log.warning("checkpoint passed over", folder=str(folder), cause=str(problem))


def _write(path: Path, data: bytes) -> str:
    """Writes and flushes a file; its sha256."""
    write_durably(path, data)
    return hashlib.sha256(data).hexdigest()


def advance(progress: Progress, finished: StepFinished, position: Reference, samples: Sequence[str]) -> Progress:
    """Progress after a batch: its record, the counts, and whether the weights before it have proven good.

    `samples` holds the role of each sample that was trained; a skipped step trained none.
    """
    skipped = bool(finished.skipped)
    counted = [] if skipped else samples
    applied = not skipped and bool(samples)
    return replace(
        progress,
        last=finished.step,
        position=position,
        finished=finished,
        skipped_in_row=progress.skipped_in_row + 1 if skipped else (0 if applied else progress.skipped_in_row),
        restores_in_row=0 if applied else progress.restores_in_row,
        good=progress.last if applied else progress.good,
        steps=progress.steps + (not finished.drain),
        drain_steps=progress.drain_steps + finished.drain,
        agent_samples=progress.agent_samples + counted.count("agent"),
        designer_samples=progress.designer_samples + counted.count("designer"),
    )
