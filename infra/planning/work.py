"""Plays, designs, batches and tokens of a recipe: counts by the schedule's rules (docs/ARCHITECTURE.md)."""

from __future__ import annotations

from infra.planning.plan import Plays, Tokens
from schemas.settings import Recipe

MOST_SCALE = 50.0


def plan_plays(recipe: Recipe) -> Plays:
    """Counts of a run in which every slot is filled and no play is lost."""
    schedule, design, rollout = recipe.schedule, recipe.design, recipe.rollout
    environments, interval = design.environments, schedule.interval
    generations = schedule.steps // interval
    plain = environments * rollout.plain_plays
    probes = probes_a_generation(recipe) * recipe.memory.probe_plays * (2 if rollout.hint_plays else 1)
    first = plain + environments * (rollout.hint_plays + 2 * rollout.earlier_plays) + probes
    generation = first + (interval - 1) * plain
    hinted = environments * rollout.hint_plays if rollout.train_hint_arm else 0
    trains = recipe.designer == "trained"
    drains = sum(generation * interval + schedule.delay >= schedule.steps for generation in range(generations))
    agents = plain + hinted / interval
    return Plays(
        generations=generations,
        steps=schedule.steps,
        drains=drains,
        designs_a_generation=environments,
        designs_most=generations * environments * design.attempts,
        a_step=plain,
        first_step=first,
        a_generation=generation,
        in_all=generations * generation - min(generations, schedule.memory_lag) * probes,
        agent_batch=plain,
        agent_batch_most=plain + hinted,
        designer_batch=environments if trains else 0,
        designer_batch_most=environments * (2 if design.train_rejected else 1) if trains else 0,
        designer_scale=min(MOST_SCALE, agents / environments * interval) if trains else 1.0,
    )


def probes_a_generation(recipe: Recipe) -> int:
    """Earlier environments that a generation plays again, once memory knows of some."""
    return recipe.memory.probe_environments if recipe.memory.enabled else 0


def plan_tokens(recipe: Recipe, plays: Plays, fill: float) -> Tokens:
    """Tokens of those counts."""
    design, rollout = recipe.design_tokens, recipe.rollout.sampling.max_tokens
    context = recipe.rollout.context_tokens
    return Tokens(
        fill=fill,
        a_play_most=context,
        full_turns_a_play=min(recipe.rollout.max_turns, max(1, recipe.rollout.context_tokens // rollout)),
        a_design_most=design,
        sampled_a_step_most=plays.a_step * context,
        sampled_a_step_mean=int(plays.a_step * context * fill),
        sampled_in_all_mean=int(fill * (plays.in_all * context + plays.generations * plays.designs_a_generation * design)),
    )
