"""Partitions and work packages against workers: who would never find work."""

from __future__ import annotations

from infra.planning.plan import Pool
from schemas.settings import Recipe


def plan_pools(recipe: Recipe) -> list[Pool]:
    """One line a pool. Each worker of a group has partitions of its own, so more workers than partitions idle."""
    processes = recipe.processes
    kinds = 1 + (recipe.rollout.earlier_plays > 0)
    environments = recipe.design.environments
    # plays of step s are asked for when version s - lag is there: so many steps stand open at once
    plays = min(recipe.rollout.units, environments) * kinds * max(1, recipe.schedule.lag)
    pools = [
        ("design", processes.design_workers, min(recipe.design.units, environments)),
        ("validate", processes.validate_workers, environments),
        ("rollout", processes.rollout_workers, plays),
        ("memory", processes.memory_workers, 0),
        ("stream", processes.stream_workers, 0),
    ]
    return [
        Pool(
            name=name,
            workers=workers,
            units=units,
            partitions=recipe.partitions,
            idle=max(0, workers - min(recipe.partitions, units or recipe.partitions)),
        )
        for name, workers, units in pools
    ]
