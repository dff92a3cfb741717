"""Memory of the trainer by ZeRO stage, and of a sampling worker.

Adam in bfloat16 holds 2 bytes of weight, 2 of gradient and 12 of optimizer (float32 copy and two moments) a parameter; in float32
4, 4 and 8. ZeRO spreads the optimizer (stage 1), gradients too (2), weights too (3) over N processes: Rajbhandari et al. 2020,
figure 1. A frozen reference (train.kl_beta) stands whole in each. A pass keeps about 34 bytes a layer, token and hidden unit
(Korthikanti et al. 2022, without the attention matrix, 16 bits), and 14 a token and word of the vocabulary: logits in two widths,
log-probabilities, a gradient. Fragmentation and buffers of communication are left to the tenth that is kept free.
"""

from __future__ import annotations

from typing import Final

from infra.planning.plan import Plays, SamplerMemory, StageMemory, TrainerMemory
from infra.planning.shapes import ModelShape
from schemas.settings import Recipe

GIB: Final = 1024**3
WIDTHS: Final = {"bfloat16": (2, 2, 12), "float32": (4, 4, 8)}
ACTIVATION_BYTES: Final = 34
LOGIT_BYTES: Final = 14
USABLE: Final = 0.9


def state_bytes(parameters: int, dtype: str, zero_stage: int, gpus: int) -> float:
    """Bytes of weights, gradients and optimizer on each of `gpus` processes."""
    weights, gradients, optimizer = WIDTHS[dtype]
    shares = [gpus if zero_stage >= stage else 1 for stage in (3, 2, 1)]
    return parameters * sum(width / share for width, share in zip((weights, gradients, optimizer), shares, strict=True))


def pass_bytes_a_token(shape: ModelShape, dtype: str) -> int:
    """Bytes that a token costs in a pass with gradients."""
    wide = 2 if dtype == "float32" else 1
    return wide * ACTIVATION_BYTES * shape.layers * shape.hidden + LOGIT_BYTES * shape.vocabulary


def plan_trainer(recipe: Recipe, shape: ModelShape) -> TrainerMemory:
    """The table of stages. Without GPUs there is one process and one row."""
    train, machine = recipe.train, recipe.machine
    gpus = machine.trainer_gpus
    room = USABLE * machine.gpu_gib * GIB if gpus else 0.0
    a_token = pass_bytes_a_token(shape, train.dtype)
    reference = WIDTHS[train.dtype][0] * shape.parameters if train.kl_beta else 0
    stages = []
    for stage in range(4) if gpus else [train.zero_stage]:
        held = state_bytes(shape.parameters, train.dtype, stage, max(gpus, 1)) + reference
        longest = int(max(0.0, room - held) / a_token)
        stages.append(StageMemory(zero_stage=stage, state_gib=held / GIB, longest_pass_tokens=longest))
    return TrainerMemory(
        gpus=gpus,
        gib=machine.gpu_gib if gpus else 0.0,
        bytes_a_token=a_token,
        chosen=train.zero_stage,
        stages=stages,
    )


def plan_sampler(recipe: Recipe, shape: ModelShape, plays: Plays) -> SamplerMemory:
    """One worker on one GPU, weights in the trainer's width, keys and values in 16 bits; no more plays than a unit has."""
    machine, rollout = recipe.machine, recipe.rollout
    weights = WIDTHS[recipe.train.dtype][0] * shape.parameters
    play = shape.cache_bytes_a_token * rollout.context_tokens
    gpus = machine.sampler_gpus
    unit = -(-plays.first_step // min(rollout.units, recipe.design.environments))
    room = USABLE * machine.gpu_gib * GIB - weights
    return SamplerMemory(
        gpus=gpus,
        gib=machine.gpu_gib if gpus else 0.0,
        weights_gib=weights / GIB,
        cache_bytes_a_token=shape.cache_bytes_a_token,
        play_gib=play / GIB,
        plays_at_once=max(0, min(unit, int(room / play))) if gpus else unit,
    )
