"""Equal budgets: what every arm must have in common before their results may stand side by side.

In: recipes. Out: the planned agent episodes that are trained, the optimizer steps, the arms trained; or a refusal that names the
first difference. Called by `spade ablate` before anything starts, and by the table. Pure. What is equal is the plan: slots that
stay empty and plays that are lost make the trained number smaller, which each result tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from schemas.errors import SettingsError
from schemas.rollout import HINTED, PLAIN
from schemas.settings import Recipe

TOLERANCE = 0.02
"""Share of the planned episodes by which an arm's trained ones may miss it before the table says so."""
WORDS = {"episodes": "agent episodes trained", "steps": "optimizer steps", "arms": "arms trained", "rate": "learning rate"}


@dataclass(frozen=True)
class Budget:
    """What a recipe plans to train. Drain batches, which hold designer samples only, are not counted as steps."""

    episodes: int
    steps: int
    arms: tuple[str, ...]
    rate: float


def plan_budget(recipe: Recipe) -> Budget:
    """The budget of a recipe in which every slot is filled and no play is lost."""
    schedule, rollout = recipe.schedule, recipe.rollout
    hinted = rollout.hint_plays if rollout.train_hint_arm else 0
    generations = schedule.steps // schedule.interval
    return Budget(
        episodes=recipe.design.environments * (schedule.steps * rollout.plain_plays + generations * hinted),
        steps=schedule.steps,
        arms=(PLAIN, HINTED) if hinted else (PLAIN,),
        rate=recipe.train.learning_rate,
    )


def require_equal(recipes: Mapping[str, Recipe]) -> Budget:
    """The one budget of all arms. Raises SettingsError naming the first arm that differs, and in what; also for an arm that time
    may end."""
    if not recipes:
        raise SettingsError("no arm is named", "Name at least one")
    first, *others = recipes
    common = plan_budget(recipes[first])
    for name in (first, *others):
        if recipes[name].max_minutes:
            raise SettingsError(
                f"arm {name} may be ended by time (max_minutes), so its budget is not known", "Set max_minutes to 0 in the recipe"
            )
    for name in others:
        own = plan_budget(recipes[name])
        for key in (field.name for field in fields(Budget)):
            ours, theirs = getattr(own, key), getattr(common, key)
            if ours != theirs:
                raise SettingsError(
                    f"the arms' budgets differ: {WORDS[key]} {_said(theirs)} in {first}, {_said(ours)} in {name}",
                    "Give the base recipe numbers that no arm changes",
                )
    return common


def is_short(trained: int, planned: int) -> bool:
    """Whether so few episodes were trained that an arm's result is no comparison at equal budget."""
    return abs(trained - planned) > TOLERANCE * planned


def _said(value: object) -> str:
    return " and ".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
