"""What makes a run impossible, each with its reason and the fix; and what a person should know though it can be.

A problem is certain from the recipe and the model's shape alone. What depends on how long plays get is a remark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.claims import MAX_CLAIM_BYTES
from infra.planning.memory import GIB, USABLE, held_bytes
from infra.planning.plan import Pool, Problem, SamplerMemory, Storage, TrainerMemory
from infra.planning.shapes import ModelShape
from schemas.settings import Recipe
from schemas.topics import MAX_MESSAGE_BYTES

STATE_SHARE = 0.75  # of the usable memory that weights, gradients and optimizer may take in an advice


def find_problems(
    recipe: Recipe,
    shape: ModelShape | None,
    trainer: TrainerMemory | None,
    sampler: SamplerMemory | None,
    storage: Storage,
    pools: Sequence[Pool],
) -> list[Problem]:
    """Every reason, the model's first."""
    found = [*_length_problems(recipe, shape)]
    if recipe.train.device == "cuda" and recipe.train.processes != recipe.machine.trainer_gpus:
        found.append(
            Problem(
                cause=f"train.processes ({recipe.train.processes}) is not machine.trainer_gpus ({recipe.machine.trainer_gpus}): "
                "each process has a GPU",
                fix="Set both to the number of GPUs that train",
            )
        )
    if shape and trainer and trainer.gpus:
        found += _trainer_problems(recipe, shape, trainer)
    if sampler and sampler.gpus and not sampler.plays_at_once:
        found.append(
            Problem(
                cause=f"a sampling worker's GPU has {USABLE * sampler.gib:.1f} of {sampler.gib:.0f} GiB to use, the weights take "
                f"{sampler.weights_gib:.1f} and one play of {recipe.rollout.context_tokens} tokens {sampler.play_gib:.1f}",
                fix="Give larger GPUs (machine.gpu_gib), or set rollout.context_tokens lower",
            )
        )
    if storage.largest_record > MAX_CLAIM_BYTES:
        found.append(
            Problem(
                cause=f"a {storage.largest_record_name} record can reach {storage.largest_record / 2**20:.1f} MiB, the log and "
                f"its place for large records take {MAX_CLAIM_BYTES // 2**20}",
                fix=RECORD_FIXES[storage.largest_record_name],
            )
        )
    found += [
        Problem(
            cause=f"processes.{pool.name}_workers: {pool.workers} workers share {pool.partitions} partitions, so "
            f"{pool.workers - pool.partitions} of them would never be given work",
            fix=f"Set partitions to at least {pool.workers}, or start fewer workers",
        )
        for pool in pools
        if pool.workers > pool.partitions
    ]
    return found


RECORD_FIXES = {
    "rollout-finished": "Set rollout.context_tokens lower",
    "env-proposed": "Set design.sampling.max_tokens lower",
    "rollout-requested": "Set rollout.units higher",
    "design-requested": "Set design.units higher, or corpus.max_words lower",
    "slots-closed": "Set design.environments lower",
    "batch-ready": "Set design.environments or the plays of an environment lower",
}


def _length_problems(recipe: Recipe, shape: ModelShape | None) -> Iterator[Problem]:
    context, design = recipe.rollout.context_tokens, recipe.design_tokens
    turn = recipe.rollout.sampling.max_tokens
    if shape and shape.positions and context > shape.positions:
        yield Problem(
            cause=f"rollout.context_tokens ({context}) is more than the {shape.positions} positions of the model",
            fix=f"Set it to {shape.positions} at most",
        )
    if shape and shape.positions and design >= shape.positions:
        yield Problem(
            cause=f"design.sampling.max_tokens ({design}) leaves a design's prompt no room in the model's {shape.positions}",
            fix="Set it lower",
        )
    if turn > context:
        yield Problem(
            cause=f"rollout.sampling.max_tokens ({turn}) is more than rollout.context_tokens ({context})",
            fix="Set it lower: a turn has to fit into the context",
        )
    if recipe.design.hint_by_second_call and recipe.model.dialect == "nano":
        yield Problem(
            cause="design.hint_by_second_call: the nano model writes the hint with the source",
            fix="Set it to false, or choose another model.dialect",
        )


def _trainer_problems(recipe: Recipe, shape: ModelShape, trainer: TrainerMemory) -> Iterator[Problem]:
    room = USABLE * trainer.gib
    chosen = next(stage for stage in trainer.stages if stage.zero_stage == trainer.chosen)
    if chosen.longest_pass_tokens:
        return
    best, needed = trainer.stages[3], _gpus_needed(recipe, shape, trainer)
    if best.longest_pass_tokens:
        fix = f"Set train.zero_stage to 3, which takes {best.state_gib:.1f}"
    elif needed:
        fix = f"Give the trainer {needed} such GPUs (machine.trainer_gpus) and train.zero_stage = 3"
    else:
        fix = "Give larger GPUs (machine.gpu_gib): the reference of train.kl_beta stands whole on each"
    yield Problem(
        cause=f"train.zero_stage {trainer.chosen}: weights, gradients and optimizer take {chosen.state_gib:.1f} GiB on each of "
        f"{trainer.gpus} GPUs, which have {room:.1f} of {trainer.gib:.0f} to use",
        fix=fix,
    )


def _gpus_needed(recipe: Recipe, shape: ModelShape, trainer: TrainerMemory) -> int:
    """The fewest processes among which stage 3 leaves a quarter of each for the pass; 0 where no number does."""
    reference = trainer.stages[3].state_gib * GIB - held_bytes(recipe.train, shape, 3, trainer.gpus)
    room = STATE_SHARE * USABLE * trainer.gib * GIB - reference
    whole = held_bytes(recipe.train, shape, 3, 1)
    return int(-(-whole // room)) if room > 0 else 0


def find_remarks(
    recipe: Recipe,
    shape: ModelShape | None,
    trainer: TrainerMemory | None,
    sampler: SamplerMemory | None,
    storage: Storage,
    pools: Sequence[Pool],
) -> list[str]:
    """What is worth knowing."""
    remarks = []
    if MAX_MESSAGE_BYTES < storage.largest_record <= MAX_CLAIM_BYTES:
        remarks.append(
            f"a {storage.largest_record_name} record can reach {storage.largest_record / 2**20:.1f} MiB, a message holds "
            f"{MAX_MESSAGE_BYTES // 2**20}: with a broker of your own name a place for such (`claims` in its TOML file), or: "
            f"{RECORD_FIXES[storage.largest_record_name].lower()}"
        )
    if shape is None:
        remarks.append(f"nothing is known of the model {recipe.model.path}: no memory is counted (put its config.json there)")
    if trainer and trainer.gpus:
        chosen = next(stage for stage in trainer.stages if stage.zero_stage == trainer.chosen)
        if 0 < chosen.longest_pass_tokens < recipe.rollout.context_tokens:
            remarks.append(
                f"a pass with gradients holds {chosen.longest_pass_tokens} tokens: longer plays (up to "
                f"{recipe.rollout.context_tokens}) need more GPUs or a smaller rollout.context_tokens"
            )
    if sampler and sampler.gpus and sampler.plays_at_once:
        remarks.append(f"a sampling worker holds {sampler.plays_at_once} plays of full length at once, more of shorter ones")
    remarks += [
        f"{pool.idle} of {pool.workers} {pool.name} workers find no work: there are {pool.units} units at once"
        for pool in pools
        if pool.idle > 0 and pool.workers <= pool.partitions
    ]
    return remarks
