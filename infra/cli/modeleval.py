"""Model folders on a suite: what `spade eval MODEL` does, and the ablations' children do.

In: folders, a suite, a recipe. Out: lines and a table by skill, a JSON file where one is named, and rows of table `evaluations`
where a store is named. Blocks for the plays. Raises SettingsError, ModelError, SandboxError, StoreError.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.cli import options
from infra.evaluations import ModelEvaluation, write_evaluations
from infra.policystore import policy_files
from infra.report.interval import paired_difference
from infra.suites import load_suite
from infra.suites.canonical import digests, write_digests

COLUMNS = (
    "run_id", "suite", "policy_version", "policy_digest", "items", "won", "formed", "win_rate", "by_family", "sampling",
    "event_id", "created_at",
)  # fmt: skip


@dataclass(frozen=True)
class Order:
    """What `spade eval MODEL...` was asked for."""

    models: tuple[Path, ...]
    suite: str
    recipe: str
    seeds: int
    limit: int
    salt: str
    hinted: bool
    out: Path | None
    store: str
    openings: Path | None = None  # where to write the digests of what the instances show first
    pairs: tuple[str, ...] = ()  # overrides of the recipe


def evaluate_folders(order: Order) -> list[ModelEvaluation]:
    """Plays, prints, keeps. What is found is written after each model, so that an interrupted order keeps what it has."""
    from infra.clickhouse import connect
    from workers.evaluate import evaluate_models

    for folder in order.models:
        policy_files(folder)  # a wrong name is told before anything is loaded
    recipe = options.read_recipe(order.recipe, list(order.pairs))
    suite = order.suite or recipe.evaluation.suite
    items = load_suite(suite)
    options.require_place(order.out, "--out")
    options.require_place(order.openings, "--openings")
    if order.store:
        options.refuse_shown_password(order.store)
        connect(order.store).close()
    found: list[ModelEvaluation] = []
    for one in evaluate_models(
        recipe,
        order.models,
        suite=suite,
        seeds_per_item=order.seeds,
        limit=order.limit,
        hinted=order.hinted,
        salt=order.salt,
        shown=partial(_note_openings, order.openings),
    ):
        found.append(one)
        options.out.print(told(one))
        if order.out is not None:
            write_evaluations(order.out, found)
        if order.store:
            remember(order.store, one)
    show_skills(found)
    for line in differences(found, [items[number % len(items)].env_id for number in range(found[0].instances)]):
        options.out.print(line)
    return found


def _note_openings(file: Path | None, shown: list[str]) -> None:
    if file is not None and not file.exists():
        write_digests(file, digests(shown))


def told(one: ModelEvaluation) -> str:
    """One evaluation as a line."""
    return (
        f"{one.model} on {one.suite}{', with hint' if one.arm != 'plain' else ''}: won {one.win_rate:.1%} of {one.instances} "
        f"instances (95 % interval {one.low:.1%} to {one.high:.1%}), {one.formed:.1%} well formed, {one.tokens} tokens"
    )


def differences(found: Sequence[ModelEvaluation], clusters: Sequence[str]) -> Iterator[str]:
    """Each further model against the first, paired."""
    for one in found[1:]:
        gap = paired_difference(found[0].results, one.results, clusters)
        yield (
            f"{one.model} against {found[0].model}: {100 * gap.mean:+.1f} points (95 % interval {100 * gap.low:+.1f} to "
            f"{100 * gap.high:+.1f}, over {gap.clusters} environments)"
        )


def show_skills(found: Sequence[ModelEvaluation]) -> None:
    """A row a skill, a column a model."""
    from rich.table import Table

    table = Table("skill", *(options.cell(one.model) for one in found))
    for skill in found[0].by_skill:
        table.add_row(options.cell(skill), *(f"{one.by_skill[skill]:.3f}" for one in found))
    options.out.print(table, soft_wrap=False)


def remember(dsn: str, one: ModelEvaluation) -> None:
    """A row in table `evaluations` of a store, under the run id `model`: no run's, and no record of a log stands behind it."""
    from infra.clickhouse import connect
    from infra.migrate import migrate

    migrate(dsn)
    sampling = "sampled, with hint" if one.arm != "plain" else "sampled"
    deciding = (one.model_digest, one.suite_digest, one.salt, one.arm, str(one.instances))
    row = {
        "run_id": "model",
        "suite": one.suite,
        "policy_version": -1,
        "policy_digest": one.model_digest,
        "items": one.instances,
        "won": sum(one.results),
        "formed": round(one.formed * one.instances),
        "win_rate": one.win_rate,
        "by_family": one.by_family,
        "sampling": f"{sampling}, {one.salt}" if one.salt else sampling,
        "event_id": str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join(deciding))),
        "created_at": datetime.datetime.now(datetime.UTC),
    }
    with closing(connect(dsn)) as store:
        store.insert("evaluations", list(COLUMNS), [[row[column] for column in COLUMNS]])
