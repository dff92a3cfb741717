"""From weights to a published policy: the Hugging Face folder, its canary, the record.

In: the engine's weights and the folder of version 0 (configuration and tokenizer). Out: a PolicyPublished record whose folder is
durable. Called by trainer/loop, after the checkpoint that holds the same weights. Raises ModelError, DiskFullError, PolicyError.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from infra.durable import DRAFT, write_error
from infra.policystore import WEIGHTS, PolicyStore, policy_files
from schemas import ids
from schemas.common import pack_floats, pack_ints
from schemas.train import Canary, PolicyPublished

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.engine import TrainEngine

CANARY_TOKENS = 48
TOLERANCE = {"float32": 1e-4, "bfloat16": 1.0}
WEIGHT_FILES = ("model.safetensors.index.json",)


def canary_tokens(vocabulary: int, seed: int, count: int = CANARY_TOKENS) -> list[int]:
    """A fixed text of token ids, spread over the vocabulary; by seed, never by chance."""
    found = []
    for index in range(count):
        digest = hashlib.blake2b(f"canary {seed} {index}".encode(), digest_size=8).digest()
        found.append(int.from_bytes(digest, "little") % vocabulary)
    return found


def write_policy(folder: Path, origin: Path, weights: dict[str, Tensor], dtype: str) -> None:
    """An ordinary Hugging Face folder: all of `origin` but its weights, these weights, their dtype. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    for name in policy_files(origin):
        if not name.endswith(WEIGHTS) and name not in WEIGHT_FILES:
            shutil.copyfile(origin / name, folder / name)
    config = json.loads((folder / "config.json").read_bytes())
    known = next((key for key in ("dtype", "torch_dtype") if key in config), "dtype")
    if config.get(known) != dtype:
        config[known] = dtype
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    try:
        save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    except SafetensorError as problem:
        raise _system_error(problem) from problem


def _system_error(problem: Exception) -> Exception:
    """The operating system's error that safetensors tells only in words; itself where it tells none."""
    found = re.search(r"\(os error (\d+)\)", str(problem))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else problem


def weights_norm(weights: dict[str, Tensor]) -> float:
    """The Euclidean norm over all weights."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in weights.values()))


def publish(
    engine: TrainEngine, store: PolicyStore, origin: Path, *, run_id: str, version: int, seed: int, cause: str
) -> PolicyPublished:
    """Makes version `version` durable below the store's place and returns its record; version 0 is `origin` as it is."""
    weights = engine.weights()
    if version == 0:
        digest, place = store.publish(0, origin)
    else:
        try:
            with tempfile.TemporaryDirectory(prefix=f"{DRAFT}export-", dir=store.place) as draft:
                write_policy(Path(draft), origin, weights, engine.settings.dtype)
                digest, place = store.publish(version, Path(draft))
        except OSError as problem:
            raise write_error(problem, f"policy {version} below {store.place}") from problem
    tokens = canary_tokens(int(engine.language_model.config.vocab_size), seed)
    return PolicyPublished(
        run_id=run_id,
        event_id=ids.event_id("policy", run_id, version, digest),
        causation_id=cause,
        created_at=time.time(),
        version=version,
        digest=digest,
        place=place,
        canary=Canary(
            tokens=pack_ints(tokens),
            logprobs=pack_floats(engine.canary(tokens)),
            tolerance=TOLERANCE[engine.settings.dtype],
        ),
        weights_norm=weights_norm(weights),
    )
