"""`spade plan`: the arithmetic of a recipe before anything starts, as text or JSON; an impossible one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from infra.planning import Plan

MIB, GB = 2**20, 10**9


def plan(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one.")],
    overrides: options.Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, the problems in it.")] = False,
    step_s: Annotated[float, typer.Option(min=0.001, help="Seconds of a step, for the bytes a day.")] = 300.0,
    fill: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Mean length of plays and designs, as a share of the most.")
    ] = 0.25,
) -> None:
    """Print what a recipe asks for: plays, tokens, ages, memory, bytes. Exit 2, with the reason, where it can't be."""
    import msgspec

    from infra.planning import find_shape, make_plan
    from infra.runs import find_folder

    chosen = options.read_recipe(recipe, overrides)
    made = make_plan(chosen, find_shape(find_folder(chosen.model.path)), step_s=step_s, fill=fill)
    if as_json:
        options.out.print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
    else:
        for line in plan_lines(made):
            options.out.print(line)
    if made.problems:
        raise refusal(made)


def refusal(made: Plan) -> SettingsError:
    """The error of a plan with problems: the first, and how many more."""
    first, *others = made.problems
    more = f" (and {len(others)} more: `spade plan` names them)" if others else ""
    return SettingsError(f"{first.cause}{more}", first.fix)


def plan_lines(made: Plan) -> Iterator[str]:
    """The plan as text, a line a fact."""
    size = f", {made.parameters / 1e9:.3g} billion parameters" if made.parameters >= GB else ""
    size = size or (f", {made.parameters / 1e6:.3g} million parameters" if made.parameters else "")
    active = f" ({made.active_parameters / 1e9:.3g} used a token)" if made.active_parameters != made.parameters else ""
    yield f"recipe {made.recipe}: {made.setting}, {made.algorithm}, model {made.model}{size}{active}"
    yield from _work_lines(made)
    yield from _memory_lines(made)
    yield from _storage_lines(made)
    for pool in made.pools:
        bound = f", {pool.units} units at once" if pool.units else ""
        yield f"pool        {pool.name}: {pool.workers} worker{'s' * (pool.workers != 1)}, {pool.partitions} partitions{bound}"
    for remark in made.remarks:
        yield f"note        {remark}"
    for problem in made.problems:
        yield f"IMPOSSIBLE  {problem.cause}. {problem.fix}"


def _figure(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _count(value: float) -> str:
    """A number of tokens for people: 65,500, 4.2 million, 13 billion."""
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if value >= unit:
            return f"{_figure(value / unit)}{name}"
    return f"{value:,.0f}"


def _work_lines(made: Plan) -> Iterator[str]:
    plays, tokens, ages = made.plays, made.tokens, made.ages
    yield (
        f"steps       {plays.steps} optimizer steps over {plays.generations} generations, "
        f"and {plays.drains} with designer samples only"
    )
    yield f"designs     {plays.designs_a_generation} a generation, at most {plays.designs_most:,} in the run with every attempt"
    yield (
        f"plays       {plays.a_step} a step, {plays.first_step} at a generation's first, {plays.a_generation:,} a generation, "
        f"{plays.in_all:,} in all"
    )
    agents = (
        f"{plays.agent_batch}"
        if plays.agent_batch == plays.agent_batch_most
        else f"{plays.agent_batch} to {plays.agent_batch_most}"
    )
    yield (
        f"batch       {agents} agent samples, and {plays.designer_batch} to {plays.designer_batch_most} designer samples once a "
        f"generation; designer scale {plays.designer_scale:g}"
    )
    yield (
        f"tokens      at most {tokens.a_play_most:,} a play ({tokens.full_turns_a_play} turns of full length), "
        f"{tokens.a_design_most:,} a design"
    )
    yield (
        f"            {_count(tokens.sampled_a_step_mean)} a step and "
        f"{_count(tokens.sampled_in_all_mean)} in all where the mean is {tokens.fill:.0%} of the most "
        f"({_count(tokens.sampled_a_step_most)} a step at most)"
    )
    yield f"age         agent samples at most {ages.agent} versions old when trained, designer samples {ages.designer}"
    yield (
        f"hidden      designing may take {ages.hidden_steps} steps and nobody waits; "
        f"pools work {ages.use_at_equal_times:.0%} of the time where design, play and training take equally long"
    )


def _memory_lines(made: Plan) -> Iterator[str]:
    trainer, sampler = made.trainer, made.sampler
    if trainer and not trainer.gpus:
        yield f"trainer     on the CPU: {_size(trainer.stages[0].state_gib)} of weights, gradients, optimizer"
    if trainer and trainer.gpus:
        yield f"trainer     on {trainer.gpus} GPUs of {trainer.gib:g} GiB; GiB of weights, gradients and optimizer on each:"
        for stage in trainer.stages:
            rest = f"and a pass of {stage.longest_pass_tokens:,} tokens" if stage.longest_pass_tokens else "does not fit"
            mark = "  <- this recipe" if stage.zero_stage == trainer.chosen else ""
            yield f"            ZeRO {stage.zero_stage}: {stage.state_gib:8.1f}  {rest}{mark}"
    if sampler:
        where = f"{sampler.gpus} GPUs of {sampler.gib:g} GiB, each" if sampler.gpus else "the CPU:"
        yield (
            f"samplers    on {where} {_size(sampler.weights_gib)} of weights, "
            f"{_size(sampler.play_gib)} of cache for a play of full length"
        )


def _storage_lines(made: Plan) -> Iterator[str]:
    storage = made.storage
    yield (
        f"log         {_figure(storage.kafka_a_step / 1e6)} MB a step, {_figure(storage.kafka_in_all / 1e9)} GB in all; "
        f"at a step in {storage.step_s:g} s {_figure(storage.kafka_a_day / 1e9)} GB a day in Kafka, "
        f"{_figure(storage.clickhouse_a_day / 1e9)} GB in ClickHouse, before compression"
    )
    yield f"            largest record: {storage.largest_record_name}, at most {storage.largest_record / MIB:.2f} of 8 MiB"
    if storage.policies_bytes:
        yield f"disk        policies and checkpoints: {_figure(storage.policies_bytes / 1e9)} GB"


def _size(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 0.95 else f"{gib * 1024:.1f} MiB"
