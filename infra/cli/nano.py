"""`spade nano build` remakes the nano model's folder from its recipe; `spade nano census` tells what that has shown it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable


def build(
    out: Annotated[str, typer.Option("--out", help="Folder to write.")] = "trainer/nano/model",
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds and processes give equal weights.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.05, max=25.0, help="Length on two idle cores.")] = 24.0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes that share every batch.")] = 2,
) -> None:
    """Make the nano model anew: tokenizer, warm start, a Hugging Face folder. Never needed by the demo or the tests."""
    from trainer.nano.build import build as build_nano

    with stoppable():
        build_nano(Path(out), seed=seed, minutes=minutes, processes=processes, tell=options.out.print)
    options.out.print(f"the model is in {out}")


def census(
    out: Annotated[
        Path, typer.Option("--out", help="File to write: digests of what the warm start's plays showed first, as JSON.")
    ],
    model: Annotated[str, typer.Option(help="Folder whose tokenizer is used.")] = "trainer/nano/model",
    seed: Annotated[int, typer.Option(min=0, help="The build's.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.05, max=25.0, help="The build's.")] = 24.0,
) -> None:
    """Draw the warm start's plays again, untrained, so that held-out instances that it has shown can be left out."""
    from infra.runs import find_folder
    from infra.suites.canonical import write_digests
    from trainer.nano.census import take_census

    options.require_place(out, "--out")
    with stoppable():
        found = take_census(find_folder(model), seed, minutes, options.out.print)
    write_digests(out, sorted(found))
    options.out.print(f"{len(found)} instances were shown; their digests are in {out}")
