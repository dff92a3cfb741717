"""`spade run`: a run with all its processes on this machine, supervised to its end; begun, resumed, or forked from another."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from infra.cli.fork import Fork
    from schemas.settings import Recipe

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, or the name of a shipped one, such as nano, tiny or qwen3-8b-games.", show_default=False
        ),
    ] = "",
    overrides: options.Overrides = None,
    folder: Annotated[str, typer.Option("--dir", help="The run's folder. Default: runs/RUN_ID.", show_default=False)] = "",
    broker: options.Broker = "",
    store: options.Store = "",
    stall_minutes: Annotated[float, typer.Option(min=0.1, help="Stop with the cause when nothing happens for so long.")] = 30.0,
    run_id: Annotated[
        str,
        typer.Option("--id", help="The run's id; two runs with one id, on two brokers, repeat each other.", show_default=False),
    ] = "",
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with a run that was stopped or killed: its folder, or its id where it lies in runs/. Recipe, broker and "
            "store are its own.",
            show_default=False,
        ),
    ] = "",
    fork: Annotated[
        str,
        typer.Option(
            "--fork",
            metavar="RUN",
            help="Begin a new run with another one's policy (its folder or id), named by --at. Weights, optimizer and recipe are "
            "taken over; open work and memory are not.",
            show_default=False,
        ),
    ] = "",
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="STEP", min=0, help="With --fork: a step, a multiple of the interval.", show_default=False),
    ] = None,
) -> None:
    """Start a run from a recipe and supervise it to its end, with the broker and store given, of `spade up`, or its own."""
    _check_choice(recipe, resume, fork, at)
    if resume:
        _refuse_with("--resume", "go on as it began", {"--set": overrides, "--dir": folder, "--id": run_id})
        _resume(resume, broker, store, stall_minutes * 60)
        return
    planned = _plan_fork(fork, at, overrides)
    chosen = planned.recipe if planned else options.read_recipe(recipe, overrides)
    _start(chosen, planned, folder, _checked_id(run_id), broker, store, stall_minutes * 60)


def _start(chosen: Recipe, planned: Fork | None, folder: str, run_id: str, broker: str, store: str, stall_s: float) -> None:
    from infra.cli import launch, preflight
    from infra.cli.rundir import HOME, held
    from infra.runs import new_run_id

    say = options.out.print
    named = run_id or new_run_id(chosen.name)
    run_dir = new_folder(folder or str(HOME / named), chosen.name)
    with stoppable(), unless_empty(run_dir), told_how_to_resume(run_dir), held(run_dir):
        preflight.check_run(chosen, run_dir, say)
        with launch.services(broker, store, run_dir, say) as where:
            parent, at = "", -1
            if planned is not None:
                parent, at = planned.parent_id, planned.at
                chosen, line = planned.begin(run_dir, named)
                say(line)
            started = launch.prepare(chosen, where, run_dir, say, named, forked_from=parent, forked_at=at)
            launch.supervise(started, where, run_dir, say, stall_limit_s=stall_s)
    say(f"run {started.run_id} is complete; its folder is {run_dir}")


def _resume(named: str, broker: str, store: str, stall_s: float) -> None:
    from infra.cli import launch, preflight
    from infra.cli.rundir import find_run_folder, held, read_notes, write_notes
    from infra.runs import parse_recipe

    say = options.out.print
    run_dir = find_run_folder(named)
    with stoppable(), held(run_dir):
        notes = read_notes(run_dir)
        if notes.finished:
            say(f"run {notes.run_id} has finished: there is nothing to resume; its folder is {run_dir}")
            return
        with told_how_to_resume(run_dir):
            preflight.check_run(parse_recipe(notes.recipe_json, notes.run_id), run_dir, say)
            with launch.same_services(notes, broker, store, run_dir, say) as where:
                write_notes(run_dir, launch.noted_again(notes, where))
                started = launch.recall(notes, where, run_dir, say)
                launch.supervise(started, where, run_dir, say, stall_limit_s=stall_s)
    say(f"run {started.run_id} is complete; its folder is {run_dir}")


def _check_choice(recipe: str, resume: str, fork: str, at: int | None) -> None:
    """One of recipe, --resume and --fork, and --at with --fork only. Raises SettingsError."""
    named = [word for word, given in (("a recipe", recipe), ("--resume", resume), ("--fork", fork)) if given]
    if not named:
        raise SettingsError("nothing says what to run", "Name a recipe (`spade run tiny`), or a run with --resume or --fork")
    if len(named) > 1:
        raise SettingsError(
            f"{named[0]} and {named[1]} are both given",
            f"With {named[1]} the recipe is that of the run it names: leave away the other",
        )
    if fork and at is None:
        raise SettingsError("--fork needs --at STEP", "Name the step whose policy the fork begins with")
    if at is not None and not fork:
        raise SettingsError("--at is for --fork", "Leave it away: --resume goes on where the run stopped")


def _refuse_with(option: str, why: str, given: dict[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name} can't be used with {option}: a run can only {why}", f"Leave {name} away, or use --fork")


def _plan_fork(fork: str, at: int | None, overrides: list[str] | None) -> Fork | None:
    if not fork or at is None:
        return None
    from infra.cli.fork import plan_fork
    from infra.cli.rundir import find_run_folder

    return plan_fork(find_run_folder(fork), at, overrides)


def _checked_id(run_id: str) -> str:
    if run_id and not RUN_ID.fullmatch(run_id):
        raise SettingsError(f"--id {run_id!r} is no run id", "Use letters, digits, dots, dashes and underscores, at most 100")
    return run_id


@contextlib.contextmanager
def told_how_to_resume(run_dir: Path) -> Iterator[None]:
    """Where the body fails or is interrupted after the run began, says how to go on."""
    from infra.cli.rundir import NOTES

    try:
        yield
    except BaseException:
        if (run_dir / NOTES).exists():
            options.out.print(f"what was done is kept; go on with: spade run --resume {shlex.quote(str(run_dir))}")
        raise


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
