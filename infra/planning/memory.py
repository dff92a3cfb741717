"""Memory of the trainer by ZeRO stage, and of a sampling worker.

Adam in bfloat16 holds 2 bytes of weight, 2 of gradient and 12 of optimizer (float32 copy and two moments) a parameter; in float32
4, 4 and 8. ZeRO spreads the optimizer (stage 1), gradients too (2), weights too (3) over N processes: Rajbhandari et al. 2020,
figure 1. A frozen reference (train.kl_beta) stands whole in each. A pass keeps about 34 bytes a layer, token and hidden unit
(Korthikanti et al. 2022, without the attention matrix, 16 bits), with activation checkpointing 2 and one layer's 34, and 14 a
token and word of the vocabulary: logits in two widths, log-probabilities, a gradient. Adapters leave the weights without gradient
and optimizer; what is offloaded lies in main memory. Fragmentation and buffers of communication are left to the tenth that is
kept free.
"""

from __future__ import annotations

from typing import Final

from infra.planning.plan import Plays, SamplerMemory, StageMemory, TrainerMemory
from infra.planning.shapes import ModelShape
from schemas.settings import Recipe, TrainSettings

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


def held_bytes(train: TrainSettings, shape: ModelShape, zero_stage: int, gpus: int) -> float:
    """Bytes of the trainer's state on each of `gpus` processes, adapters and offloading counted."""
    weights, _, optimizer = WIDTHS[train.dtype]
    shares = {stage: gpus if zero_stage >= stage else 1 for stage in (1, 3)}
    trained = adapter_parameters(shape, train.lora_rank) if train.lora_rank else shape.parameters
    held = state_bytes(trained, train.dtype, zero_stage, gpus)
    held += weights * (shape.parameters if train.lora_rank else 0) / shares[3]
    if train.offload != "none" and zero_stage:
        held -= optimizer * trained / shares[1]
    if train.offload == "all" and zero_stage == 3:
        held -= weights * (shape.parameters + (trained if train.lora_rank else 0)) / shares[3]
    return held


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Of adapters on every linear layer of a dense decoder; where there are experts on the attention alone, as peft has it."""
    wide, narrow = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    sides = 2 * (shape.hidden + wide) + 2 * (shape.hidden + narrow)
    if not shape.experts:
        sides += 3 * (shape.hidden + shape.feed_forward)
    return rank * sides * shape.layers


def pass_bytes_a_token(shape: ModelShape, dtype: str, *, checkpointed: bool = False) -> int:
    """Bytes that a token costs in a pass with gradients."""
    wide = 2 if dtype == "float32" else 1
    layers = 2 * shape.layers + ACTIVATION_BYTES if checkpointed else ACTIVATION_BYTES * shape.layers
    return wide * layers * shape.hidden + LOGIT_BYTES * shape.vocabulary


def plan_trainer(recipe: Recipe, shape: ModelShape) -> TrainerMemory:
    """The table of stages. Without GPUs there is one process and one row."""
    train, machine = recipe.train, recipe.machine
    gpus = machine.trainer_gpus
    room = USABLE * machine.gpu_gib * GIB if gpus else 0.0
    a_token = pass_bytes_a_token(shape, train.dtype, checkpointed=train.activation_checkpointing)
    reference = WIDTHS[train.dtype][0] * shape.parameters if train.kl_beta else 0
    stages = []
    for stage in range(4) if gpus else [train.zero_stage]:
        held = held_bytes(train, shape, stage, max(gpus, 1)) + reference
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
