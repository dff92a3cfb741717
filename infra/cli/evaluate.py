"""`spade eval`: policies of a run on a held-out suite.

Each evaluation plays in the jail, with the run's sampler settings, and is a record in the log. All policies play the same
instances with the same sampling seeds, so that their results pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from schemas.train import EvalFinished


def evaluate(
    version: Annotated[
        list[int] | None, typer.Option("--version", min=0, help="Policy version; repeatable. Default: the newest.")
    ] = None,
    suite: Annotated[str, typer.Option(help="A shipped suite or a .jsonl file. Default: the recipe's.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=0, help="Instances at most; 0: the recipe's number.")] = 0,
    broker: options.Broker = "",
    store: options.Store = "",
    run: options.RunId = "",
    state_dir: options.StateDir = "",
    log_json: options.LogJson = False,
) -> None:
    """Let policies of a run play a held-out suite; each result becomes a record and is printed."""
    from infra.cli.evaluation import compare, evaluate_policy, read_policies
    from infra.runs import await_run, find_run
    from infra.suites import load_suite

    context = options.stage_context(broker, store, run, state_dir, log_json=log_json, needs_store=False)
    context = context.model_copy(update={"run_id": find_run(context.broker, run)})
    with stoppable():
        found = await_run(context, deadline_s=20.0)
        policies = read_policies(context.broker, found.run_id)
        records: list[EvalFinished] = []
        for wanted in version or [max(policies, default=0)]:
            if wanted not in policies:
                known = f"0 to {max(policies)}" if policies else "none"
                raise SettingsError(
                    f"run {found.run_id} has published no policy {wanted} (published: {known})", "Name one of those"
                )
            record = evaluate_policy(found, policies[wanted], context, suite or found.recipe.evaluation.suite, limit)
            options.out.print(
                f"policy {wanted} on {record.suite}: won {record.win_rate:.1%} of {record.items} instances, "
                f"{sum(record.formed) / record.items:.1%} well formed "
                f"({', '.join(f'{name} {rate:.2f}' for name, rate in sorted(record.by_family.items()))})"
            )
            records.append(record)
        if len(records) > 1:
            options.out.print(compare(records[0], records[-1], load_suite(records[0].suite)))
