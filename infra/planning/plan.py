"""What a plan says, part by part. Every part is made by the module of its name and shown by `spade plan`."""

from __future__ import annotations

import msgspec


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a plan's parts."""


class Problem(Planned, frozen=True, kw_only=True):
    """Why a run of this recipe can't be, and what to do about it."""

    cause: str
    fix: str


class Plays(Planned, frozen=True, kw_only=True):
    """Episodes, designs and batches: counts."""

    generations: int
    steps: int  # optimizer steps with plays
    drains: int  # further ones with designer samples only
    designs_a_generation: int
    designs_most: int  # in the run, all attempts
    a_step: int  # plays of a generation's later steps
    first_step: int  # plays of a generation's first step: hint and earlier arms too, and probe plays
    a_generation: int
    in_all: int
    agent_batch: int  # trained plays of a later step
    agent_batch_most: int  # and of a first step
    designer_batch: int  # designs of one generation, in one batch
    designer_batch_most: int  # with rejected ones, where they are trained
    designer_scale: float  # of the advantages, where they are centred


class Tokens(Planned, frozen=True, kw_only=True):
    """Tokens; "most" is where every play and design is as long as it may be, "mean" at the assumed share of it."""

    fill: float
    a_play_most: int
    full_turns_a_play: int  # turns of full length that a context holds
    a_design_most: int
    sampled_a_step_most: int  # plays of a later step
    sampled_a_step_mean: int
    sampled_in_all_mean: int


class Ages(Planned, frozen=True, kw_only=True):
    """How old samples are when they are trained, in versions, and what the schedule hides."""

    agent: int
    designer: int
    hidden_steps: int  # steps that a generation's design may take without anybody waiting
    use_at_equal_times: float  # share of the time that each pool works, where design, play and training take equally long


class StageMemory(Planned, frozen=True, kw_only=True):
    """GiB on each GPU at one ZeRO stage."""

    zero_stage: int
    state_gib: float  # weights, gradients, optimizer
    longest_pass_tokens: int  # that the rest holds with gradients; 0: not even the state fits


class TrainerMemory(Planned, frozen=True, kw_only=True):
    """The trainer's share of a GPU by ZeRO stage; of main memory where it has no GPU."""

    gpus: int
    gib: float  # of one GPU; 0: main memory, as much as there is
    bytes_a_token: int  # of a pass: activations and logits
    chosen: int
    stages: list[StageMemory]


class SamplerMemory(Planned, frozen=True, kw_only=True):
    """One sampling worker."""

    gpus: int
    gib: float  # 0: main memory
    weights_gib: float
    cache_bytes_a_token: int
    play_gib: float  # keys and values of a play as long as it may be
    plays_at_once: int  # of that length, beside the weights; 0: none


class Storage(Planned, frozen=True, kw_only=True):
    """Bytes in the log and in the store at the mean length, before their compression; and on disk."""

    step_s: float
    kafka_a_step: int
    kafka_a_day: int
    clickhouse_a_day: int
    kafka_in_all: int
    largest_record: int
    largest_record_name: str
    policies_bytes: int  # policies and checkpoints that stand at once


class Pool(Planned, frozen=True, kw_only=True):
    """A pool of workers against what feeds it."""

    name: str
    workers: int
    units: int  # packages that are there at once, at most; 0: no bound
    partitions: int
    idle: int  # workers that never find work


class Plan(Planned, frozen=True, kw_only=True):
    """The whole. `problems`: why the run can't be; empty where it can."""

    recipe: str
    algorithm: str
    setting: str
    model: str
    parameters: int
    active_parameters: int
    plays: Plays
    tokens: Tokens
    ages: Ages
    trainer: TrainerMemory | None
    sampler: SamplerMemory | None
    storage: Storage
    pools: list[Pool]
    problems: list[Problem]
    remarks: list[str]
