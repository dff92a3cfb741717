"""`spade demo`: the whole loop on this machine, with progress, an evaluation and a report.

Starts its own broker and store in a new folder, runs the demo recipe, lets version 0 and the last version play the same held-out
instances, reads the report from the store by SQL and ends everything. Called by `make demo`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from infra.cli.runs import new_folder, told_how_to_resume, unless_empty


def demo(
    folder: Annotated[
        str, typer.Option("--dir", help="Folder of the run; new or empty. Default: runs/demo-DATE-TIME.", show_default=False)
    ] = "",
    recipe: Annotated[str, typer.Option(help="Recipe file or the name of a shipped one.")] = "demo",
    overrides: options.Overrides = None,
) -> None:
    """Run the complete self-play loop here, in under ten minutes, and show what it learned."""
    from infra.cli import launch, preflight
    from infra.cli.evaluation import compare_policies
    from infra.cli.rundir import held
    from infra.suites import load_suite

    chosen = options.read_recipe(recipe, overrides)
    load_suite(chosen.evaluation.suite)  # a wrong name is told now, not after minutes of self-play
    run_dir = new_folder(folder, chosen.name).resolve()
    say = options.out.print
    with stoppable(), unless_empty(run_dir), told_how_to_resume(run_dir), held(run_dir):
        preflight.check_run(chosen, run_dir, say)
        with launch.services("", "", run_dir, say, own=True) as where:
            run = launch.prepare(chosen, where, run_dir, say)
            launch.supervise(run, where, run_dir, say, stall_limit_s=300.0)
            evaluation = compare_policies(run, where, run_dir, say)
            launch.store_rest(run, where, run_dir, say)
            files = write_report(run.run_id, where.store_dsn, run_dir, evaluation)
    say("broker, store and all processes have stopped")
    for what, path in files.items():
        say(f"{what}: {path}")
    named = shlex.quote(str(run_dir))
    say(f"to ask about it: spade up --run {named}; spade why ENV_ID, spade memory, spade dashboard; spade down")


def write_report(run_id: str, store_dsn: str, run_dir: Path, evaluation: object) -> dict[str, Path]:
    """Reads the facts from the store, prints the report, writes report.html and curves.png; what was written."""
    from infra.clickhouse import connect
    from infra.report import page, picture, queries, terminal
    from infra.report.facts import EvaluationFacts

    store = connect(store_dsn)
    try:
        facts = queries.read_run(store, run_id, evaluation if isinstance(evaluation, EvaluationFacts) else None)
    finally:
        store.close()
    curves, report = run_dir / "curves.png", run_dir / "report.html"
    picture.draw(facts, curves)
    report.write_text(page.write_page(facts, curves.read_bytes()), encoding="utf-8")
    terminal.show(facts, options.out)
    return {"report": report, "curves": curves, "logs": run_dir / "logs"}
