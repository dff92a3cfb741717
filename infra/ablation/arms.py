"""The arms of the ablation: each is one base recipe under named changes, so that nothing else differs.

In: a base recipe, an arm, the folder of the made pools. Out: the arm's overrides by dotted key, as `spade run --set` takes them.
Called by `spade ablate`, the table and the tests. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from schemas.errors import SettingsError
from schemas.settings import Recipe

Maker = Literal["designer", "wide", "author", "levels"]
"""Who makes a pool: the base model as designer; the same with made-up memory lines of any size, so that it writes of all sizes
that it can; the warm start's own author; the author at every size, by family and level."""

BASE, SELF_PLAY = "base", "self-play"
TWO_SKILLS = ("Mathematical Reasoning", "Logical Deduction")
POOLED: Mapping[str, Any] = {"pool": "fixed", "design.per_document": 1, "design.attempts": 1, "collapse.enabled": False}
WITHOUT_CORPUS: Mapping[str, Any] = {"corpus.enabled": False, "collapse.enabled": False}
LEVELLED: Mapping[str, Any] = {**POOLED, "pool": "procedural"}


@dataclass(frozen=True)
class Pool:
    """A folder of environments that is made once for all seeds. `size` 0: as many as self-play designs in all."""

    maker: Maker
    size: int = 0

    def count(self, base: Recipe) -> int:
        """Its environments."""
        return self.size or base.schedule.steps // base.schedule.interval * base.design.environments


@dataclass(frozen=True)
class Arm:
    """One row of the table."""

    name: str
    told: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    pool: Pool | None = None
    paper: float | None = None  # 30B, games, mean of eight benchmarks
    paper_name: str = ""
    fixed: bool = False  # among the fixed pools, the best of which counts


def _fixed(name: str, size: int) -> Arm:
    told = f"fixed pool of {size or 'as many as self-play designs'}, by the base designer"
    return Arm(name, told, POOLED, Pool("designer", size), 51.4, "fixed pool + GRPO", fixed=True)


ARMS: tuple[Arm, ...] = (
    Arm(BASE, "no training", paper=50.2, paper_name="base"),
    _fixed("fixed-64", 64),
    _fixed("fixed-256", 256),
    _fixed("fixed-all", 0),
    Arm(
        "fixed-wide",
        "fixed pool of as many as self-play designs, by the base designer shown memory lines of any size",
        POOLED,
        Pool("wide"),
        51.4,
        "fixed pool + GRPO",
        fixed=True,
    ),
    Arm("author-fixed", "fixed pool by the warm start's author", POOLED, Pool("author")),
    Arm(
        "author-live",
        "the warm start's author, new environments each generation",
        {**LEVELLED, "levels.rule": "memory", "memory.enabled": True},
        Pool("levels"),
        53.0,
        "frozen strong designer",
    ),
    Arm("procedural", "generators with sliding difficulty (RLVE)", LEVELLED, Pool("levels"), 53.0, "fixed pool RLVE"),
    Arm(
        "published",
        "self-play as published",
        {
            "algorithm": "published",
            "design.hint_by_second_call": False,
            "memory.probe_environments": 0,
            "collapse.enabled": False,
        },
        paper=58.3,
        paper_name="SPADE",
    ),
    Arm(SELF_PLAY, "self-play, mended (the default)", paper=58.3, paper_name="SPADE"),
    Arm("no-memory", "without memory", {"memory.enabled": False}, paper=53.2, paper_name="without memory"),
    Arm("no-corpus", "without corpus", WITHOUT_CORPUS, paper=53.5, paper_name="without corpus"),
    Arm(
        "no-corpus-blocked",
        "without corpus; where diversity falls, fewer seeds and blocked clusters",
        {**WITHOUT_CORPUS, "collapse.enabled": True},
    ),
    Arm(
        "no-corpus-control",
        "without corpus; where diversity falls, the same and documents until it is back",
        {**WITHOUT_CORPUS, "collapse.enabled": True, "collapse.borrow_documents": True},
    ),
    Arm("collapse-control", "the default; where diversity falls, the same and a document a slot", {"collapse.enabled": True}),
    Arm(
        "frozen-no-memory",
        "frozen designer, no memory",
        {"designer": "frozen", "memory.enabled": False},
        paper=40.5,
        paper_name="frozen designer, no memory",
    ),
    Arm("frozen", "frozen designer", {"designer": "frozen"}),
    Arm(
        "learning-potential",
        "signal: learning potential",
        {"design.signal": "learning-potential"},
        paper=55.9,
        paper_name="EMA in place of regret",
    ),
    Arm("variance", "signal: solver variance", {"design.signal": "variance"}),
    Arm("solve-rate", "signal: solve rate alone", {"design.signal": "solve-rate"}),
    Arm(
        "two-skills", "two skills of six", {"skills": TWO_SKILLS, "design.skills_active": 2}, paper=53.7, paper_name="two skills"
    ),
)
CORPUS_ARMS = (SELF_PLAY, "no-corpus", "no-corpus-blocked", "no-corpus-control", "collapse-control")
"""Whose diversity is drawn side by side: what the corpus does for it, and what the collapse control does."""
QUICK = (BASE, "fixed-64", "fixed-all", SELF_PLAY)


def find_arm(name: str) -> Arm:
    """The arm of a name. Raises SettingsError."""
    for arm in ARMS:
        if arm.name == name:
            return arm
    raise SettingsError(f"there is no arm {name!r}", f"Name some of: {', '.join(arm.name for arm in ARMS)}")


def overrides_of(arm: Arm, base: Recipe, seed: int, pools: Path) -> dict[str, Any]:
    """What the arm sets over the base recipe, by dotted key."""
    own: dict[str, Any] = {"name": f"ablate-{arm.name}", "seed": seed, **arm.changes}
    if arm.pool is not None:
        own["corpus.path"] = str(pool_folder(pools, arm.pool, base))
        own["corpus.tags"] = ()
    return own


def pool_folder(pools: Path, pool: Pool, base: Recipe) -> Path:
    """Where a pool stands: by its maker, and by its size where it has one."""
    size = "" if pool.maker == "levels" else f"-{pool.count(base)}"
    return (pools / f"{pool.maker}{size}").resolve()
