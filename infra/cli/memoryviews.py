"""`spade memory`: what the store remembers of a run, as tables; any read-only question; both as JSON and CSV.

What a model wrote is made visible in the terminal and stands as it is in exports (infra/exports.py). The views' SQL stands in
infra/dashboards/panels, kind view.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from infra.cli import options
from infra.dashboards.panels import load_panels
from infra.durable import write_whole
from infra.exports import as_records, plain, to_csv, to_json
from infra.plaintext import escape_line
from schemas.errors import DiskFullError, SettingsError

if TYPE_CHECKING:
    from infra.clickhouse import Answer, ClickHouseStore

SHOWN_ROWS, SHOWN_CELL = 200, 200
ROWS = 20
EXPORTED_ROWS = 100_000
RUN_PARAMETER = "{run:String}"
VIEWS = ("coverage", "top_regret", "most_repeated", "rejections")
View = Annotated[str, typer.Option("--view", help=f"One view only: {', '.join(VIEWS)}.", show_default=False)]


def views(
    context: typer.Context,
    store: options.Store = "",
    folder: options.RunFolder = "",
    run: Annotated[str, typer.Option("--run", envvar="SPADE_RUN", help="Run id. Default: the newest.", show_default=False)] = "",
    sql: Annotated[
        str, typer.Option("--sql", help=f"Any read-only question. {RUN_PARAMETER} in it is the run's id.", show_default=False)
    ] = "",
    view: View = "",
    rows: Annotated[int, typer.Option(min=1, max=EXPORTED_ROWS, help="Rows of each view that ranks.")] = ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV; all views at once need --out.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV without the apostrophe before what a spreadsheet would take for a formula.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write there: a file, or with --csv and all views a folder.", show_default=False),
    ] = None,
) -> None:
    """What is remembered of a run: coverage by skill and difficulty, top regret, most repeated, rejected by reason.

    Default store: that of `spade up`, else that of the newest run in the folder
    runs. --sql takes one SELECT, SHOW TABLES, DESCRIBE, EXISTS or EXPLAIN; the
    tables are told in docs/MEMORY.md.
    """
    if context.invoked_subcommand is not None:
        return
    from infra.cli.runstore import newest_run, run_store

    _check(sql, view, as_json=as_json, as_csv=as_csv, raw=raw, out=out)
    with run_store(store, folder) as opened:
        if sql:
            from infra.question import ask_question

            asked = {"run": run or opened.run_id or newest_run(opened.store)} if RUN_PARAMETER in sql else {}
            answers = {"": ask_question(opened.store, sql, asked)}
            run_id = asked.get("run", "")
        else:
            run_id = run or opened.run_id or newest_run(opened.store)
            answers = _views(opened.store, run_id, [view] if view else list(VIEWS), rows)
    if as_json:
        told = as_records(answers[""]) if sql else {"run_id": run_id, "views": {k: as_records(v) for k, v in answers.items()}}
        _write(to_json(told), out)
    elif as_csv:
        _csv(answers, out, raw=raw)
    else:
        _show(run_id, answers)


def _check(sql: str, view: str, *, as_json: bool, as_csv: bool, raw: bool, out: Path | None) -> None:
    """Raises SettingsError for options that contradict each other."""
    if view and view not in VIEWS:
        raise SettingsError(f"there is no view {view}", f"Name one of: {', '.join(VIEWS)}")
    if sql and view:
        raise SettingsError("--sql and --view both say what is asked", "Give one of them")
    if as_json and as_csv:
        raise SettingsError("--json and --csv both say how it is written", "Give one of them")
    if raw and not as_csv:
        raise SettingsError("--raw goes with --csv", "Leave it away: JSON holds every text as it is")
    if out is not None and not (as_json or as_csv):
        raise SettingsError("--out needs a format", "Add --json or --csv")
    if as_csv and out is None and not (sql or view):
        raise SettingsError(
            f"{len(VIEWS)} views make {len(VIEWS)} CSV files", "Name a folder with --out, or one view with --view"
        )


def _views(store: ClickHouseStore, run_id: str, names: Sequence[str], rows: int) -> dict[str, Answer]:
    """The views' answers by name. Raises SettingsError where the store has no design of the run."""
    values = {"run": run_id, "limit": rows}
    panels = [load_panels()[name] for name in names]
    found = {one.name: store.answer(one.sql, {key: values[key] for key in one.parameters}) for one in panels}
    if not any(answer.rows for answer in found.values()):
        (known,) = store.query("SELECT count() AS n FROM runs FINAL WHERE run_id = {run:String}", {"run": run_id}, readonly=True)
        if not known["n"]:
            raise SettingsError(
                f"store {store.address.shown} holds nothing of run {run_id}", "Name another with --run or --store"
            )
    return found


def _csv(answers: Mapping[str, Answer], out: Path | None, *, raw: bool) -> None:
    if len(answers) == 1:
        seen = out is None and sys.stdout.isatty()
        shown: Callable[[str], str] = (lambda text: escape_line(text, options.LONGEST_TEXT)) if seen else str
        _write(to_csv(next(iter(answers.values())), raw=raw, shown=shown), out)
        return
    assert out is not None  # checked
    for name, answer in answers.items():
        _write(to_csv(answer, raw=raw), out / f"{name}.csv")


def _write(text: str, out: Path | None) -> None:
    """To a file, whole or not at all, or to standard output."""
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text.encode())
    except OSError as problem:
        kind = DiskFullError if problem.errno == errno.ENOSPC else SettingsError
        raise kind(f"{out} can't be written ({problem.strerror})", "Name another place with --out") from problem
    options.out.print(f"written: {out}")


def _show(run_id: str, answers: Mapping[str, Answer]) -> None:
    if run_id:
        options.out.print(f"run {run_id}")
    for name, answer in answers.items():
        panel = load_panels().get(name)
        if panel is not None and not answer.rows:
            options.out.print(f"{panel.title}: none")
            continue
        options.out.print(as_table(answer, panel.title if panel else ""), soft_wrap=False)
        if panel is not None:
            options.out.print(f"{panel.shows}\n")
        if len(answer.rows) > SHOWN_ROWS:
            options.out.print(f"the first {SHOWN_ROWS} of {len(answer.rows)} rows; --json and --csv write all")


def as_table(answer: Answer, title: str = "") -> Table:
    """The first rows for a terminal; whatever stands in a text is text."""
    table = Table(title=title or None, title_justify="left")
    for name, kind in zip(answer.columns, answer.types, strict=True):
        number = kind.removeprefix("Nullable(").startswith(("Int", "UInt", "Float", "Decimal"))
        table.add_column(Text(escape_line(name)), justify="right" if number else "left")
    for row in answer.rows[:SHOWN_ROWS]:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape_line(str(plain(value)), SHOWN_CELL)
