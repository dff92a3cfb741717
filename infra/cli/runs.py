"""`spade run RECIPE`: a run with all its processes on this machine, supervised to its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError


def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one: nano, nano-published, demo, tiny.")],
    overrides: options.Overrides = None,
    folder: Annotated[
        str, typer.Option("--dir", help="The run's folder. Default: runs/RECIPE-DATE-TIME.", show_default=False)
    ] = "",
    broker: options.Broker = "",
    store: options.Store = "",
    stall_minutes: Annotated[float, typer.Option(min=0.1, help="Stop with the cause when nothing happens for so long.")] = 30.0,
    run_id: Annotated[
        str,
        typer.Option("--id", help="The run's id; two runs with one id, on two brokers, repeat each other.", show_default=False),
    ] = "",
) -> None:
    """Start a run from a recipe and supervise it to its end, with the broker and store given, of `spade up`, or its own."""
    from infra.cli import launch, preflight

    chosen = options.read_recipe(recipe, overrides)
    run_dir = new_folder(folder, chosen.name)
    say = options.out.print
    with stoppable(), unless_empty(run_dir):
        preflight.check_run(chosen, run_dir, say)
        with launch.services(broker, store, run_dir, say) as where:
            started = launch.prepare(chosen, where, run_dir, run_id)
            launch.supervise(started, where, run_dir, say, stall_limit_s=stall_minutes * 60)
    say(f"run {started.run_id} is complete; its folder is {run_dir}")


@contextlib.contextmanager
def unless_empty(folder: Path) -> Iterator[None]:
    """Where the body fails, removes what it made of `folder` and its parents, as far as nothing stands in them."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


def new_folder(given: str, name: str) -> Path:
    """The run's folder, which must be new or empty. Raises SettingsError."""
    folder = Path(given) if given else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"--dir {folder} exists and is not an empty folder", "Name a new one: a run never overwrites another")
    return folder
