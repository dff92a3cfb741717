"""How old samples are when they are trained, and how much of the design time nobody waits for.

Designs of generation g begin when version gK - lag - lead is there, plays of its first step when version gK - lag is: `lead`
steps later. They also need generation g - memory_lag closed, whose last plays begin with version (g - memory_lag + 1)K - 1 - lag
and take a step at most; so no more than (memory_lag - 1)K of the lead counts.
"""

from __future__ import annotations

from infra.planning.plan import Ages
from schemas.settings import Recipe


def plan_ages(recipe: Recipe) -> Ages:
    """See the module. With lag 0 the trainer waits for each step's plays, and they for it."""
    schedule = recipe.schedule
    interval = schedule.interval
    remembered = schedule.lead if not recipe.memory.enabled else min(schedule.lead, (schedule.memory_lag - 1) * interval)
    hidden = min(remembered, interval)
    a_step = 1 if schedule.lag else 2
    waited = max(0, interval - hidden * a_step)
    return Ages(
        agent=schedule.lag_limit("agent"),
        designer=schedule.lag_limit("designer"),
        hidden_steps=hidden,
        use_at_equal_times=interval / (interval * a_step + waited),
    )
