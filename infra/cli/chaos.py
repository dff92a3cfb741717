"""`spade chaos`: a run undisturbed, the same run under a storm of kills, and whether the guarantees held. Or only the check.

The two runs have one id, so that their ids, seeds and therefore samples are the same. The undisturbed one has a broker and a
store of its own; so has the other unless some are named: then only processes of the run are struck, never a named service.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError, SpadeError

if TYPE_CHECKING:
    from infra.chaos.evidence import Evidence
    from infra.chaos.guarantees import Finding
    from infra.cli.launch import Services
    from schemas.settings import Recipe


class GuaranteeError(SpadeError):
    """A guarantee did not hold."""


def chaos(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped one. Not with --check.")] = "",
    kills: Annotated[int, typer.Option(min=1, max=10_000, help="Blows that fall on processes while they are busy.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the plan of blows.")] = 0,
    overrides: options.Overrides = None,
    folder: Annotated[
        str, typer.Option("--dir", help="Folder of both runs; new or empty. Default: runs/chaos-DATE-TIME.", show_default=False)
    ] = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="Stop with the cause when one of the two runs takes longer.")] = 60.0,
    check: Annotated[
        str, typer.Option("--check", metavar="RUN", help="Only check: a run's id, or the folder of one.", show_default=False)
    ] = "",
    broker: options.Broker = "",
    store: options.Store = "",
) -> None:
    """Kill a run's processes at random while they are busy, and check that nothing was lost, doubled or changed.

    Exit code 0 only where every guarantee held.
    """
    from infra.cli import disturb, preflight
    from infra.cli.rundir import HOME

    say = options.out.print
    with stoppable():
        if check:
            if recipe:
                raise SettingsError("--check takes no recipe: it reads that of the run", "Leave one of the two out")
            findings = _check_run(check, broker, store)
        else:
            if not recipe:
                raise SettingsError("spade chaos names no recipe", "Write for example: spade chaos tiny --kills 10")
            chosen = options.read_recipe(recipe, overrides)
            _require_fixed(chosen)
            preflight.check_run(chosen, Path(folder or HOME), lambda _: None)
            order = disturb.Order(recipe, tuple(overrides or ()), _folder(folder), kills, seed, minutes * 60, broker, store)
            findings = disturb.disturb(order, check_evidence)
    show_findings(findings)
    broken = [finding.name for finding in findings if not finding.holds]
    if broken:
        raise GuaranteeError(f"{len(broken)} of {len(findings)} guarantees did not hold: {'; '.join(broken)}")
    say(f"all {len(findings)} guarantees held")


def show_findings(findings: Sequence[Finding]) -> None:
    """A table: guarantee, whether it held, what was seen."""
    from rich.table import Table

    table = Table("guarantee", "held", "seen")
    for finding in findings:
        table.add_row(finding.name, "yes" if finding.holds else "NO", finding.told)
    options.out.print(table, soft_wrap=False)


def check_evidence(evidence: Evidence, where: Services) -> list[Finding]:
    """Everything that a run's log and store must show by themselves. Raises StoreError, SettingsError."""
    from infra.chaos import guarantees
    from infra.clickhouse import connect
    from infra.runs import read_recipe
    from streams.schedule import Schedule
    from workers.memory_rows import TABLES

    if evidence.started is None:
        raise SettingsError(f"{where.broker.address} holds no run {evidence.run_id}", "Name another run or broker")
    recipe = read_recipe(evidence.started)
    schedule = Schedule(recipe.schedule)
    if evidence.ending is not None:
        schedule = schedule.ended_at(evidence.ending.last_generation)
    findings = guarantees.check_log(evidence, recipe, list(schedule.batches()))
    client = connect(where.store_dsn)
    try:
        stored, rewards = guarantees.stored_places(client, evidence.run_id, TABLES)
    finally:
        client.close()
    return [*findings, guarantees.check_store(evidence, TABLES, stored, rewards)]


def _folder(given: str) -> Path:
    from infra.cli.runs import new_folder

    folder = new_folder(given, "chaos").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_fixed(recipe: Recipe) -> None:
    """Raises SettingsError for a schedule whose undisturbed run is no measure: its samples and weights never repeat."""
    if recipe.schedule.kind != "fixed":
        raise SettingsError(
            'spade chaos holds a run against the same run undisturbed, which schedule.kind = "free" does not repeat',
            "Disturb the fixed schedule, or check a free run alone: spade chaos --check RUN",
        )


def _check_run(named: str, broker: str, store: str) -> list[Finding]:
    from infra.chaos.evidence import read_evidence
    from infra.cli.launch import Services
    from infra.runs import find_run

    if (Path(named) / "broker").is_dir():
        from infra.cli.disturb import reopened

        with reopened(Path(named).resolve()) as where:
            return check_evidence(read_evidence(where.broker, find_run(where.broker)), where)
    where = Services(broker=options.require_broker(broker), store_dsn=options.require_store(store))
    return check_evidence(read_evidence(where.broker, find_run(where.broker, named)), where)
