"""`spade doctor` and `spade gate`: what this machine reaches, and whether one environment file would be admitted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from infra.cli import options
from infra.plaintext import escape_line
from schemas.errors import SettingsError

MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "fails": "[red]fails[/red]"}


def doctor(
    broker: options.Broker = "",
    store: options.Store = "",
    attack: Annotated[
        bool, typer.Option("--attack", help="Instead, run hostile programs in jails of this machine and show what stopped each.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings, or what came of each attack, as JSON.")] = False,
) -> None:
    """Tell what this machine reaches: packages, sandbox level, broker, store, accelerator; and how to fix what fails."""
    if attack:
        from infra.cli.attack import attack_jails

        raise typer.Exit(0 if attack_jails(as_json) else 1)
    from infra.cli.diagnosis import diagnose

    findings = list(diagnose(broker, store))
    failed = sum(finding.state == "fails" for finding in findings)
    if as_json:
        rows = [{name: escape_line(value) for name, value in dataclasses.asdict(finding).items()} for finding in findings]
        print(json.dumps({"findings": rows, "failed": failed}, indent=2))  # noqa: T201 - for programs: the console would wrap it
    else:
        table = Table("", "what", "found", "how to fix it", show_lines=False)
        for finding in findings:
            table.add_row(MARKS[finding.state], finding.what, options.cell(finding.found), options.cell(finding.fix))
        options.out.print(table, soft_wrap=False)
        options.out.print("everything that a run needs is here" if not failed else f"{failed} of these keep a run from working")
    if failed:
        raise typer.Exit(1)


def gate(
    file: Annotated[Path, typer.Argument(help="A Python file with one environment.")],
    hint: Annotated[str, typer.Option(help="The hint to judge with it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    max_turns: Annotated[int, typer.Option(min=1, max=64, help="Turns of an episode.")] = 25,
    setting: Annotated[
        str, typer.Option(help="Form of the actions: plain (any text), games (\\boxed{}) or tools (<tool_call>, <answer>).")
    ] = "plain",
    level: Annotated[str, typer.Option(help="Weakest sandbox level to accept: any, rootless or full.")] = "any",
    packages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Allow an import as a recipe's sandbox.packages does: numpy, gymnasium; can be repeated."
        ),
    ] = None,
) -> None:
    """Judge an environment file as a run would. Exit 0: admitted; 1: refused, with the rule and evidence; 2: could not run.

    The file holds one class whose name ends in Env, with the methods below.
    A solution's actions must win: the step that ends the episode pays more
    than 0. Rewards are within -1 to 1; nothing is paid after the end. It may
    import random, math, string, re, json, collections, itertools and others
    of the standard library that only compute, and what --packages allows.
    An example:

    \b
    import random
    class AddEnv:
        def __init__(self, max_turns=25): self.max_turns = max_turns
        def reset(self, seed=None):  # -> (observation, {})
            dice, self.over = random.Random(seed), False
            self.a, self.b = dice.randint(10, 99), dice.randint(10, 99)
            return f"Add {self.a} and {self.b}.", {}
        def step(self, action):  # -> (text, reward, terminated, truncated, {})
            won = not self.over and action == str(self.a + self.b)
            self.over = True
            return "Over.", float(won), True, False, {}
        def solution(self):  # -> the actions that win, list of str
            return \\[str(self.a + self.b)]
    """
    from infra.actions import FORMS, action_form
    from workers.gate.command import gate_file

    if setting not in FORMS:
        raise SettingsError(f"--setting {setting!r} is not known", f"Name one of: {', '.join(FORMS)}")
    form = action_form(setting)
    allowed = tuple(name for given in packages or () for name in given.split(","))
    code = gate_file(file, hint, as_json=as_json, max_turns=max_turns, required_level=level, form=form, packages=allowed)
    raise typer.Exit(code)
