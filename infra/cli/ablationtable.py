"""The table of an ablation on the terminal and as files: table.md and curves.png beside the results that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra.cli import options

if TYPE_CHECKING:
    from infra.ablation.table import Ablation

TABLE, CURVES = "table.md", "curves.png"


def write_table(results: Path) -> None:
    """Makes table and picture of the results that stand, shows and writes them. Raises SettingsError where these don't fit."""
    from infra.ablation.markdown import markdown
    from infra.ablation.picture import draw
    from infra.ablation.results import read_results
    from infra.ablation.table import make_table

    found = read_results(results)
    table = make_table(found)
    (results / TABLE).write_text(markdown(table), encoding="utf-8")
    draw(found, results / CURVES)
    show(table)
    options.out.print(f"table: {results / TABLE}")
    options.out.print(f"picture: {results / CURVES}")


def show(table: Ablation) -> None:
    """The main columns as a table of the terminal."""
    from rich.table import Table

    from infra.ablation.markdown import paper, points, share

    rates = [f"{options.cell(suite)}, won %" for suite in table.suites]
    shown = Table("arm", "seeds", *rates, "over base", "self-play minus this", "tokens sampled", "paper, 30B games")
    for row in table.rows:
        mark = " (best fixed)" if row.arm.name == table.best_fixed else ""
        shown.add_row(
            row.arm.name + mark,
            str(row.seeds),
            *(share(row.suites[suite]) for suite in table.suites),
            options.cell(points(row.over_base)),
            options.cell(points(row.under_default)),
            f"{row.sampled_tokens / 1e6:.2f} M" if row.sampled_tokens else "",
            paper(row.arm),
        )
    options.out.print(shown, soft_wrap=False)
    for suite in table.suites:
        options.out.print(f"{suite}: {table.instances[suite]} instances, {table.left_out[suite]} left out as seen before")
