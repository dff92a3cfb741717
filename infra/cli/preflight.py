"""What `spade run` looks at before it starts anything, so that bad input is one clear line and loses nothing.

In: a recipe and the run's folder. Raises the boundary error of what is wrong; every check names the cause and the fix. Called by
`spade run`, `spade demo` and `spade doctor`.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from infra.runs import find_folder, tokenizer_digest
from schemas.errors import DiskFullError, ModelError, SandboxError, SettingsError
from schemas.settings import Recipe

LEAST_FREE_BYTES = 512 * 1024 * 1024
POLICY_COPIES = 12  # policies, checkpoints and their temporary copies that stand at once, at most
LASTING_WEIGHTS = 5  # a policy, and a checkpoint's weights, float32 copy and two moments
MODEL_FILES = ("config.json", "tokenizer.json")
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")  # one file, or the index of several


def check_run(recipe: Recipe, run_dir: Path, say: Callable[[str], None]) -> None:
    """Every check that needs neither broker nor store; `say` is told what was found."""
    model = check_model(recipe)
    check_plan(recipe, model)
    check_dialect(recipe, model)
    check_samplers(recipe)
    documents, kind = check_corpus(recipe), "environments in the pool" if recipe.is_pooled else "documents"
    check_disk(run_dir, model, kept_versions(recipe))
    level = check_sandbox(recipe)
    say(f"recipe {recipe.name} ({recipe.algorithm}), model {recipe.model.path}, {documents} {kind}, sandbox level: {level}")


def check_model(recipe: Recipe) -> Path:
    """The model's folder. Raises ModelError where it is missing, incomplete or asks for code of its own."""
    folder = find_folder(recipe.model.path)
    fix = "Name a Hugging Face folder with model.path in the recipe or --set model.path=FOLDER"
    if not folder.is_dir():
        raise ModelError(f"model.path: folder {recipe.model.path} does not exist", fix)
    for name in MODEL_FILES:
        if not (folder / name).is_file():
            raise ModelError(f"model.path: {folder} has no {name}", fix)
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise ModelError(f"model.path: {folder} has no {WEIGHT_FILES[0]}", fix)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ModelError(f"model.path: {folder / 'config.json'} is not JSON ({problem})", fix) from problem
    if "auto_map" in config:
        raise ModelError(
            f"model.path: {folder} asks to run code of its own (auto_map)", "Use a model that transformers itself knows"
        )
    tokenizer_digest(folder)
    return folder


def check_plan(recipe: Recipe, model: Path) -> None:
    """Raises SettingsError where the arithmetic alone shows that the run can't be; `spade plan` shows all of it."""
    from infra.cli.plan import refusal
    from infra.planning import find_shape, make_plan

    made = make_plan(recipe, find_shape(model))
    if made.problems:
        raise refusal(made)


def check_dialect(recipe: Recipe, model: Path) -> None:
    """Raises ModelError where the model can't be spoken to as the recipe wants (no tokenizer of the dialect, no chat template),
    and SettingsError where a design's prompt alone has no room."""
    from infra.dialects import recipe_dialect
    from schemas.design import DesignSlot, Document

    dialect = recipe_dialect(recipe, model)
    if recipe.model.dialect == "nano" or recipe.is_pooled:
        return
    nothing = Document(document_id="", title="", text="")
    bare = [DesignSlot(slot=0, design_attempt=0, env_id="", skill=skill, document=nothing, group="") for skill in recipe.skills]
    needed = max(len(dialect.design_prompt(slot)) for slot in bare)
    context, design = recipe.rollout.context_tokens, recipe.design.sampling.max_tokens
    if needed > context - design:
        raise SettingsError(
            f"rollout.context_tokens ({context}) leaves {max(context - design, 0)} tokens beside design.sampling.max_tokens "
            f"({design}), a design's prompt without any document takes {needed}",
            "Set the first higher or the second lower",
        )


def check_samplers(recipe: Recipe) -> None:
    """Raises SettingsError where vLLM is asked for and not installed, or an external designer's address or key can't be used."""
    if recipe.processes.sampler == "vllm" and importlib.util.find_spec("vllm") is None:
        raise SettingsError(
            "processes.sampler: vllm is asked for, and it is not installed here",
            "Run `make install-vllm` (VLLM=gpu for GPUs) and .venv-vllm/bin/spade, or --set processes.sampler=transformers",
        )
    if recipe.designer == "external":
        from workers.samplers.endpoint import open_endpoint

        open_endpoint(recipe.external)


def check_corpus(recipe: Recipe) -> int:
    """Number of documents, or of the pool's environments; 0 where the recipe uses none. Raises CorpusError."""
    from infra.corpus.pool import recipe_documents

    return len(recipe_documents(recipe, find_folder(recipe.corpus.path)))


def check_sandbox(recipe: Recipe) -> str:
    """The level that this machine reaches. Raises SandboxError where the recipe asks for more."""
    from workers.sandbox.probe import probe

    found = probe()
    if not found.level:
        raise SandboxError(f"no jail can be started here: {found.why_not_stronger}", found.fix)
    if not found.meets(recipe.sandbox.level):
        raise SandboxError(
            f"sandbox.level: {recipe.sandbox.level} is asked for, this machine reaches {found.level}: {found.why_not_stronger}",
            f"{found.fix}, or set sandbox.level to any",
        )
    return found.level


def kept_versions(recipe: Recipe) -> int:
    """How many policies, each with its checkpoint, the run keeps for good."""
    generations = recipe.schedule.steps // recipe.schedule.interval
    return generations // recipe.train.keep_every if recipe.train.keep_every else 0


def check_disk(run_dir: Path, model: Path, kept: int = 0) -> None:
    """Raises DiskFullError where the run's folder has too little space, SettingsError where it can't be written.

    `kept`: policies with their checkpoints that are never removed.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(run_dir).free
    except OSError as problem:
        raise SettingsError(
            f"the run's folder {run_dir} can't be made ({problem.strerror})", "Name another with --dir"
        ) from problem
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    needed = LEAST_FREE_BYTES + (POLICY_COPIES * 3 + kept * LASTING_WEIGHTS) * weights
    if free < needed:
        raise DiskFullError(
            f"{run_dir} has {free // 2**20} MiB free, the run needs {needed // 2**20}",
            "Free some, or name another folder with --dir",
        )
