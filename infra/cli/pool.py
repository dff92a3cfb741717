"""`spade pool make`: a folder of environments, made once and admitted by the real gate, for `pool = "fixed"` or "procedural"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError


def make(
    to: Annotated[Path, typer.Option("--to", help="The pool's folder; new or empty.")],
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="designer: the recipe's model, without memory. wide: the same, shown memory lines of any size. author: the nano "
            "model's own families, sizes drawn. levels: the same at every size, by family and level, for a procedural pool.",
        ),
    ] = "designer",
    size: Annotated[int, typer.Option(min=0, help="Environments; with --by levels 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn. A smaller pool begins a larger one.")] = 0,
    recipe: Annotated[
        str, typer.Option(help="Recipe file or the name of a shipped one: model, documents, sampling, jail.")
    ] = "nano",
    overrides: options.Overrides = None,
) -> None:
    """Write a pool of environments that the gate admits. Some tenths of a second each."""
    from infra.cli.poolmaking import MAKERS, PoolOrder, make_pool

    if by not in MAKERS:
        raise SettingsError(f"--by {by!r} is not known", f"Name one of: {', '.join(MAKERS)}")
    if not size and by != "levels":
        raise SettingsError(f"--by {by} needs --size", "Say how many environments the pool is to hold")
    chosen = options.read_recipe(recipe, overrides)
    if by != "designer" and chosen.model.dialect != "nano":
        raise SettingsError(
            f"--by {by} writes the nano model's families, and {recipe} speaks {chosen.model.dialect}", "Use --by designer"
        )
    with stoppable():
        count = make_pool(chosen, PoolOrder(by, size, seed, to), options.out.print)  # type: ignore[arg-type]  # checked above
    options.out.print(f"{count} environments written to {to}")
