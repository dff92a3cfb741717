"""`spade doctor` and `spade gate`: what this machine reaches, and whether one environment file would be admitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape as escape_markup
from rich.table import Table

from infra.cli import options

MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "fails": "[red]fails[/red]"}


def doctor(broker: options.Broker = "", store: options.Store = "") -> None:
    """Tell what this machine reaches: packages, sandbox level, broker, store, accelerator; and how to fix what fails."""
    from infra.cli.diagnosis import diagnose

    table = Table("", "what", "found", "how to fix it", show_lines=False)
    failed = 0
    for finding in diagnose(broker, store):
        failed += finding.state == "fails"
        table.add_row(MARKS[finding.state], finding.what, escape_markup(finding.found), escape_markup(finding.fix))
    options.out.print(table, soft_wrap=False)
    options.out.print("everything that a run needs is here" if not failed else f"{failed} of these keep a run from working")
    if failed:
        raise typer.Exit(1)


def gate(
    file: Annotated[Path, typer.Argument(help="A Python file with one environment.")],
    hint: Annotated[str, typer.Option(help="The hint to judge with it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    max_turns: Annotated[int, typer.Option(min=1, max=64, help="Turns of an episode.")] = 25,
    level: Annotated[str, typer.Option(help="Weakest sandbox level to accept: any, rootless or full.")] = "any",
) -> None:
    """Judge an environment file as a run would. Exit 0: admitted; 1: refused, with the rule and evidence; 2: could not run."""
    from workers.gate.command import gate_file

    raise typer.Exit(gate_file(file, hint, as_json=as_json, max_turns=max_turns, required_level=level))
