"""Grafana's dashboard from the panels, built with Grafana's own library: `python -m infra.dashboards.grafana` writes it.

In: the SQL files of infra/dashboards/panels. Out: a JSON file in infra/grafana/provisioning/dashboards, which infra/kafka.yml
mounts; a test holds the committed file against what this makes. Values that the page binds become Grafana's variables, quoted by
Grafana (`${run:sqlstring}`); the data source asks as a user that can only read. Needs the package grafana-foundation-sdk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import barchart, common, dashboard, table, timeseries, trend
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    GridPos,
    VariableHide,
    VariableRefresh,
)

from infra.dashboards.panels import ON_BOARDS, Panel, load_panels

OUT: Final = Path(__file__).resolve().parent.parent / "grafana" / "provisioning" / "dashboards" / "self-play.json"
PLUGIN: Final = "grafana-clickhouse-datasource"
SOURCE: Final = DataSourceRef(type_val=PLUGIN, uid="spade")
TABLE_FORMAT: Final = 1  # of the plugin: rows as they come, not one time series
ROWS: Final = 500
UNITS: Final = {"share": "percentunit", "per minute": "opm"}
# What stands for each value that the page binds.
VALUES: Final = {"{run:String}": "${run:sqlstring}", "{search:String}": "${search:sqlstring}", "{limit:UInt32}": str(ROWS)}
WIDTH, HEIGHT, FULL = 12, 8, 24


class ClickHouseQuery(variants.Dataquery):
    """A question as the ClickHouse plugin keeps it in a dashboard."""

    def __init__(self, sql: str) -> None:
        self._sql = sql

    def to_json(self) -> dict[str, object]:
        """The plugin's own fields."""
        return {
            "refId": "A",
            "datasource": {"type": PLUGIN, "uid": SOURCE.uid},
            "editorType": "sql",
            "queryType": "table",
            "format": TABLE_FORMAT,
            "rawSql": self._sql,
        }

    def build(self) -> ClickHouseQuery:
        """Itself: it is its own builder."""
        return self


def grafana_sql(panel: Panel) -> str:
    """The panel's SQL with Grafana's variables in place of bound values. Raises ValueError for a value that has none."""
    sql = panel.sql
    for parameter, variable in VALUES.items():
        sql = sql.replace(parameter, variable)
    if "{" in sql.replace("${", ""):
        raise ValueError(f"panel {panel.name} binds a value that Grafana has no variable for")
    return sql


def build_dashboard() -> str:
    """The dashboard as JSON text, the same for the same panels."""
    runs = load_panels()["runs"]
    chosen = f"SELECT run FROM (\n{runs.sql}\n)"  # noqa: S608  (our own file)
    built = (
        dashboard.Dashboard("Self-play")
        .uid("spade-self-play")
        .description("One run's learning, designs and health, from the environment memory.")
        .tags(["spade"])
        .timezone("browser")
        .time("now-24h", "now")
        .refresh("10s")
        .readonly()
        .with_variable(
            dashboard.QueryVariable("run")
            .label("Run")
            .datasource(SOURCE)
            .query({"refId": "run", "rawSql": chosen, "format": TABLE_FORMAT, "editorType": "sql", "queryType": "table"})
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
        .with_variable(dashboard.TextBoxVariable("search").label("Filter environments").hide(VariableHide.DONT_HIDE))
    )
    shown = [panel for panel in load_panels().values() if panel.kind in ON_BOARDS]
    for number, (panel, place) in enumerate(zip(shown, _places(shown), strict=True), start=1):
        built = built.with_panel(_BUILDERS[panel.kind](panel).id(number).grid_pos(place))
    return str(JSONEncoder(sort_keys=True, indent=2).encode(built.build())) + "\n"


def _places(panels: Sequence[Panel]) -> Iterator[GridPos]:
    """Charts two in a row, tables over the whole width."""
    x = y = 0
    for panel in panels:
        width = FULL if panel.kind == "table" else WIDTH
        if x + width > FULL:
            x, y = 0, y + HEIGHT
        yield GridPos(h=HEIGHT, w=width, x=x, y=y)
        x += width


def _common(builder: Any, panel: Panel) -> Any:
    built = (
        builder.title(panel.title).description(panel.shows).datasource(SOURCE).with_target(ClickHouseQuery(grafana_sql(panel)))
    )
    if panel.unit in UNITS:
        built = built.unit(UNITS[panel.unit])
    return built.min(0).max(1) if panel.unit == "share" else built


def _legend() -> Any:
    return (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .calcs(["lastNotNull"])
    )


def _line(panel: Panel) -> Any:
    builder = timeseries.Panel() if panel.x == "time" else trend.Panel().x_field(panel.x)
    built = (
        _common(builder, panel)
        .draw_style(GraphDrawStyle.LINE)
        .line_width(2)
        .show_points(VisibilityMode.AUTO)
        .span_nulls(True)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .legend(_legend())
    )
    if panel.band:
        hidden = [
            DynamicConfigValue(id_val="custom.lineWidth", value=0),
            DynamicConfigValue(id_val="custom.showPoints", value="never"),
        ]
        fill = [
            DynamicConfigValue(id_val="custom.fillBelowTo", value=f"{panel.band} low"),
            DynamicConfigValue(id_val="custom.fillOpacity", value=20),
        ]
        built = built.override_by_name(f"{panel.band} low", hidden).override_by_name(f"{panel.band} high", [*hidden, *fill])
    return built


def _bars(panel: Panel) -> Any:
    """Long rows are spread over columns by Grafana; bars, since the spread turns x into text."""
    value = panel.sql.split("AS `")[-1].split("`")[0] if panel.kind == "points" else "designs"
    options = {"columnField": panel.series, "rowField": panel.x, "valueField": value, "emptyValue": "null"}
    built = (
        _common(barchart.Panel(), panel)
        .x_field(f"{panel.x}\\{panel.series}")
        .legend(_legend())
        .with_transformation(DataTransformerConfig(id_val="groupingToMatrix", options=options))
    )
    return built.stacking(StackingMode.NORMAL) if panel.kind == "stacked" else built


def _table(panel: Panel) -> Any:
    return _common(table.Panel(), panel)


_BUILDERS: Final[dict[str, Callable[[Panel], Any]]] = {"line": _line, "points": _bars, "stacked": _bars, "table": _table}


def main() -> None:
    """Writes the dashboard into the repository."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(build_dashboard(), encoding="utf-8")


if __name__ == "__main__":
    main()
