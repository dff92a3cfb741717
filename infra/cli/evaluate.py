"""`spade eval`: policies of a run, or model folders, on a held-out suite.

Each evaluation plays in the jail, with a recipe's sampler settings. All policies play the same instances with the same sampling
seeds, so that their results pair. Of a run each is a record in the log, which reaches
the run's store; of a folder a row in the store that is named, and a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from schemas.train import EvalFinished


def evaluate(
    models: Annotated[
        list[Path] | None,
        typer.Argument(help="Hugging Face folders to play with. None: policies of a run, by its log.", show_default=False),
    ] = None,
    version: Annotated[
        list[int] | None, typer.Option("--version", min=0, help="Policy version; repeatable. Default: the newest.")
    ] = None,
    suite: Annotated[
        str, typer.Option(help="A shipped suite, a .jsonl file or a pool's folder. Default: the recipe's.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Instances at most; 0: the recipe's number.")] = 0,
    recipe: Annotated[str, typer.Option(help="With folders: the recipe whose sampler, turns and jail are used.")] = "nano",
    overrides: options.Overrides = None,
    seeds: Annotated[int, typer.Option(min=0, help="With folders: instances of each environment; 0: the recipe's number.")] = 0,
    salt: Annotated[str, typer.Option(help="With folders: names another set of instances of the same environments.")] = "",
    hinted: Annotated[bool, typer.Option("--hinted", help="With folders: play with the suite's hints.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="With folders: also write results by instance, as JSON.", show_default=False)
    ] = None,
    openings: Annotated[
        Path | None,
        typer.Option(help="With folders: write digests of what the instances show first, to find those played before."),
    ] = None,
    log_only: Annotated[
        bool, typer.Option("--log-only", help="Of a run: write results to its log and leave the store to its memory workers.")
    ] = False,
    broker: options.Broker = "",
    store: options.Store = "",
    run: options.RunId = "",
    state_dir: options.StateDir = "",
    log_json: options.LogJson = False,
) -> None:
    """Let policies of a run, or model folders, play a held-out suite; each result is printed and kept."""
    if models:
        from infra.cli.modeleval import Order, evaluate_folders

        if version or run:
            raise SettingsError(
                "--version and --run are for policies of a run, and folders are named", "Leave away the one or the other"
            )
        order = Order(tuple(models), suite, recipe, seeds, limit, salt, hinted, out, store, openings, tuple(overrides or ()))
        with stoppable():
            evaluate_folders(order)
        return
    _refuse_without_folders(
        {"--set": overrides, "--seeds": seeds, "--salt": salt, "--hinted": hinted, "--out": out, "--openings": openings}
    )
    with stoppable():
        _evaluate_run(version, suite, limit, (broker, store, run, state_dir), log_json=log_json, log_only=log_only)


def _refuse_without_folders(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name} is for model folders, and none is named", "Name one: spade eval MODEL")


def _evaluate_run(
    version: list[int] | None, suite: str, limit: int, where: tuple[str, str, str, str], *, log_json: bool, log_only: bool
) -> None:
    from infra.cli.evaluation import compare, evaluate_policy, read_policies, remember
    from infra.clickhouse import connect
    from infra.runs import await_run, find_run
    from infra.suites import load_suite

    broker, store, run, state_dir = where
    if not broker:  # both are those of `spade up`; of a broker that is named, the store that is up may be another's
        store = store or options.standing().get("store", "")
    if store and not log_only:
        connect(options.require_store(store)).close()  # before minutes of plays
    context = options.stage_context(broker, store, run, state_dir, log_json=log_json, needs_store=False)
    context = context.model_copy(update={"run_id": find_run(context.broker, run)})
    found = await_run(context, deadline_s=20.0)
    policies = read_policies(context.broker, found.run_id)
    records: list[EvalFinished] = []
    for wanted in version or [max(policies, default=0)]:
        if wanted not in policies:
            known = f"0 to {max(policies)}" if policies else "none"
            raise SettingsError(f"run {found.run_id} has published no policy {wanted} (published: {known})", "Name one of those")
        record = evaluate_policy(found, policies[wanted], context, suite or found.recipe.evaluation.suite, limit)
        options.out.print(
            f"policy {wanted} on {record.suite}: won {record.win_rate:.1%} of {record.items} instances, "
            f"{sum(record.formed) / record.items:.1%} well formed "
            f"({', '.join(f'{name} {rate:.2f}' for name, rate in sorted(record.by_family.items()))})"
        )
        records.append(record)
    if len(records) > 1:
        options.out.print(compare(records[0], records[-1], load_suite(records[0].suite)))
    if not log_only:
        options.out.print(remember(context, found.run_id))
