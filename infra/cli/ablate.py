"""`spade ablate`: the arms of the paper's table one after the other, each a real run and its evaluations, and the table.

Finished arms stand as small files in the results folder and are not run again; an unfinished run goes on where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError

QUICK_SETTINGS = ("schedule.steps=30", "train.keep_every=10")
QUICK_SEEDS, SEEDS = 2, 3


def ablate(
    quick: Annotated[
        bool, typer.Option("--quick", help="The main question in about an hour: base, fixed pools, self-play; 30 steps, 2 seeds.")
    ] = False,
    arms: Annotated[
        list[str] | None, typer.Option("--arms", metavar="NAME,...", help="Only these arms. Default: all, or those of --quick.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds of each arm, counted from the recipe's; 0: 3, with --quick 2.")] = 0,
    recipe: Annotated[str, typer.Option(help="The base recipe that every arm changes: a file or a shipped name.")] = "ablation",
    overrides: options.Overrides = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Where finished arms, table and picture are written. Default: docs/results, with --quick docs/results/quick.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        str,
        typer.Option(
            "--dir",
            help="Folder of runs and pools. Default: runs/ablation, with --quick runs/ablation-quick.",
            show_default=False,
        ),
    ] = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="Stop with the cause when one run takes longer.")] = 120.0,
    table_only: Annotated[bool, typer.Option("--table", help="Run nothing: make table and picture from what stands.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Run nothing: tell arms, budget, and what stands already.")] = False,
) -> None:
    """Run the paper's ablations at equal budget, arm by arm and seed by seed, and write table and picture.

    Ctrl-C ends what runs and keeps finished arms; the same command goes on.
    """
    from infra.cli import ablating
    from infra.cli.ablationtable import write_table

    place = results or (Path("docs/results/quick") if quick else Path("docs/results"))
    if table_only:
        write_table(place)
        return
    order = ablating.Order(
        recipe=recipe,
        pairs=(*(QUICK_SETTINGS if quick else ()), *(overrides or ())),
        arms=_chosen(arms, quick=quick),
        seeds=seeds or (QUICK_SEEDS if quick else SEEDS),
        folder=Path(folder or ("runs/ablation-quick" if quick else "runs/ablation")).resolve(),
        results=place,
        limit_s=minutes * 60,
        quick=quick,
    )
    with stoppable():
        planned = ablating.plan_work(order)
        for line in planned.told():
            options.out.print(line)
        if plan:
            return
        ablating.do_work(planned, options.out.print)
    write_table(place)


def _chosen(named: list[str] | None, *, quick: bool) -> tuple[str, ...]:
    """The arms' names in the table's order. Raises SettingsError for one that there is not."""
    from infra.ablation.arms import ARMS, QUICK, find_arm

    wanted = [one.strip() for given in named or () for one in given.split(",") if one.strip()]
    if named and not wanted:
        raise SettingsError("--arms names no arm", f"Name some of: {', '.join(arm.name for arm in ARMS)}")
    chosen = {find_arm(name).name for name in wanted} or {arm.name for arm in ARMS if not quick or arm.name in QUICK}
    return tuple(arm.name for arm in ARMS if arm.name in chosen)
