"""The arithmetic of a run before it starts: what a recipe asks of machines, log and store, and whether that can be.

In: a recipe and its model's shape. Out: a Plan. Called by `spade plan`, and by `spade run` before it starts anything. Pure.
"""

from __future__ import annotations

from infra.planning.memory import plan_sampler, plan_trainer
from infra.planning.pace import plan_ages
from infra.planning.plan import Plan, Problem
from infra.planning.pools import plan_pools
from infra.planning.refusals import find_problems, find_remarks
from infra.planning.shapes import ModelShape, find_shape
from infra.planning.storage import plan_storage
from infra.planning.work import plan_plays, plan_tokens
from schemas.settings import Recipe

__all__ = ["ModelShape", "Plan", "Problem", "find_shape", "make_plan"]


def make_plan(recipe: Recipe, shape: ModelShape | None, *, step_s: float = 300.0, fill: float = 0.25) -> Plan:
    """The plan of a recipe. Without a shape nothing is said of memory.

    `step_s`: seconds of a step, as you measure or guess them. `fill`: mean length of a play or design, as a share of the most.
    """
    plays = plan_plays(recipe)
    tokens = plan_tokens(recipe, plays, fill)
    trainer = plan_trainer(recipe, shape) if shape else None
    sampler = plan_sampler(recipe, shape, plays) if shape else None
    storage = plan_storage(recipe, plays, shape, step_s, fill)
    pools = plan_pools(recipe)
    return Plan(
        recipe=recipe.name,
        algorithm=recipe.algorithm,
        setting=recipe.setting,
        model=recipe.model.path,
        parameters=shape.parameters if shape else 0,
        active_parameters=shape.active_parameters if shape else 0,
        plays=plays,
        tokens=tokens,
        ages=plan_ages(recipe),
        trainer=trainer,
        sampler=sampler,
        storage=storage,
        pools=pools,
        problems=find_problems(recipe, shape, trainer, sampler, storage, pools),
        remarks=find_remarks(recipe, shape, trainer, sampler, storage, pools),
    )
