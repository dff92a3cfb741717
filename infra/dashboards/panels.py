"""The panels: one SQL file each, the one source of what the local page and Grafana show.

A file begins with comment lines `-- key: value`: title, shows (what one sees), kind, unit, order, and where the kind needs them
x, series, band. Then stands one SELECT with parameters bound as `{name:Type}`. Its columns are the series, under their own names.

Kinds: line, points and stacked are charts over the column `x`; with `series` the rows are long (x, series, value) and are
spread over columns by `spread`; `band: NAME` says that columns "NAME low" and "NAME high" bound the line NAME. table: rows as
they come. detail: asked for by itself, on no board. view: a table of `spade memory`, on no board.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from infra.clickhouse import Row, Store

Kind = Literal["line", "points", "stacked", "table", "detail", "view"]
CHARTS: Final = frozenset({"line", "points", "stacked"})
ON_BOARDS: Final = CHARTS | {"table"}
FOLDER: Final = Path(__file__).parent / "panels"
KEYS: Final = frozenset({"title", "shows", "kind", "unit", "order", "x", "series", "band"})
_HEADER = re.compile(r"-- ([a-z]+): (.+)")
_PARAMETER = re.compile(r"\{(\w+):(\w+)\}")


@dataclass(frozen=True)
class Panel:
    """One question and how its answer is shown."""

    name: str
    title: str
    shows: str
    kind: Kind
    unit: str  # share | return | count | versions | per minute | text
    order: int
    sql: str
    x: str = ""
    series: str = ""  # the column that names the series, where rows are long
    band: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        """Name -> ClickHouse type of what has to be bound."""
        return dict(_PARAMETER.findall(self.sql))


def parse_panel(name: str, text: str) -> Panel:
    """The panel of a file's text. Raises ValueError that names the file and what is wrong with it: a mistake of ours."""
    header: dict[str, str] = {}
    lines = text.splitlines()
    while lines and (found := _HEADER.fullmatch(lines[0])):
        header[found[1]] = found[2]
        lines.pop(0)
    missing = {"title", "shows", "kind", "unit", "order"} - set(header)
    if missing or set(header) - KEYS:
        raise ValueError(f"panel {name}.sql: missing {sorted(missing)}, unknown {sorted(set(header) - KEYS)}")
    if header["kind"] not in get_args(Kind) or (header["kind"] in CHARTS) != ("x" in header):
        raise ValueError(f"panel {name}.sql: kind {header['kind']!r} with x {header.get('x')!r}")
    return Panel(name=name, sql="\n".join(lines).strip(), **{**header, "order": int(header["order"])})  # type: ignore[arg-type]  # checked


@functools.cache
def load_panels() -> Mapping[str, Panel]:
    """Every panel by name, in the order in which they are shown."""
    found = [parse_panel(file.stem, file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.sql")]
    return {panel.name: panel for panel in sorted(found, key=lambda panel: (panel.order, panel.name))}


def ask(store: Store, panel: Panel, values: Mapping[str, Any]) -> list[Row]:
    """The panel's rows; `values` are bound, never pasted in. Blocks; raises StoreError, KeyError for a value that is missing."""
    bound = {name: values[name] for name in panel.parameters}
    return store.query(panel.sql, bound, readonly=True)


def spread(panel: Panel, rows: Sequence[Row]) -> list[Row]:
    """Rows with one column a series, in the order in which the series first appear; as they are where rows are wide."""
    if not panel.series:
        return list(rows)
    names = list(dict.fromkeys(str(row[panel.series]) for row in rows))
    wide: dict[Any, Row] = {}
    for row in rows:
        (value,) = (row[column] for column in row if column not in (panel.x, panel.series))
        wide.setdefault(row[panel.x], {panel.x: row[panel.x], **dict.fromkeys(names)})[str(row[panel.series])] = value
    return list(wide.values())
