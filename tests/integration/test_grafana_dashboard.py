"""Grafana's dashboard is what the panels make, asks the provisioned data source, and the engine answers every query of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

import infra
from infra.clickhouse import ClickHouseStore, connect
from infra.dashboards.grafana import OUT, build_dashboard, grafana_sql
from infra.dashboards.panels import CHARTS, ON_BOARDS, load_panels, parse_panel
from infra.local.store import LocalStore
from tests.generatedrun import GeneratedRun

pytestmark = pytest.mark.integration

PROVISIONING = Path(infra.__file__).parent / "grafana" / "provisioning"
RUN = "it's a run"  # Grafana has to quote it


@pytest.fixture(scope="module")
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    GeneratedRun(RUN, 4).fill(opened)
    yield opened
    opened.close()


def queries() -> dict[str, str]:
    """Every question of the committed dashboard, by where it stands."""
    whole = json.loads(OUT.read_text(encoding="utf-8"))
    found = {panel["title"]: target["rawSql"] for panel in whole["panels"] for target in panel["targets"]}
    return found | {f"variable {one['name']}": one["query"]["rawSql"] for one in whole["templating"]["list"] if "query" in one}


def interpolated(sql: str, **values: str) -> str:
    """As Grafana sends it: `${name:sqlstring}` becomes the value in single quotes, with those in it doubled."""

    def quoted(found: re.Match[str]) -> str:
        return "'" + values[found[1]].replace("'", "''") + "'"

    return re.sub(r"\$\{(\w+):sqlstring\}", quoted, sql)


def test_the_committed_dashboard_is_what_the_panels_make() -> None:
    assert OUT.read_text(encoding="utf-8") == build_dashboard(), "run: python -m infra.dashboards.grafana"


def test_every_panel_but_the_details_is_on_it_and_none_overlaps() -> None:
    whole = json.loads(OUT.read_text(encoding="utf-8"))
    assert [panel["title"] for panel in whole["panels"]] == [one.title for one in load_panels().values() if one.kind in ON_BOARDS]
    taken: set[tuple[int, int]] = set()
    for panel in whole["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_engine_answers_every_query_with_the_runs_rows(client: ClickHouseStore) -> None:
    asked = queries()
    assert len(asked) == len([one for one in load_panels().values() if one.kind in ON_BOARDS]) + 1
    for name, sql in asked.items():
        rows = client.query(interpolated(sql, run=RUN, search=""), readonly=True)
        assert rows, f"{name} shows nothing"
        assert "$" not in interpolated(sql, run=RUN, search="")
    runs = client.query(asked["variable run"], readonly=True)
    assert {"run": RUN} in runs


def test_fields_that_panels_name_are_columns_of_their_answers(client: ClickHouseStore) -> None:
    whole = json.loads(OUT.read_text(encoding="utf-8"))
    for panel in whole["panels"]:
        rows = client.query(interpolated(panel["targets"][0]["rawSql"], run=RUN, search=""), readonly=True)
        columns: set[str] = set(rows[0])
        for change in panel.get("transformations", []):
            options = change["options"]
            assert {options["columnField"], options["rowField"], options["valueField"]} == columns
            columns = {f"{options['rowField']}\\{options['columnField']}"}
        if "xField" in panel.get("options", {}):
            assert panel["options"]["xField"] in columns
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            assert override["matcher"]["options"] in columns


def test_it_asks_the_data_source_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "clickhouse.yml").read_text())["datasources"]
    whole = json.loads(OUT.read_text(encoding="utf-8"))
    asked: list[dict[str, Any]] = [panel["datasource"] for panel in whole["panels"]]
    asked += [target["datasource"] for panel in whole["panels"] for target in panel["targets"]]
    asked += [one["datasource"] for one in whole["templating"]["list"] if one["type"] == "query"]
    assert {(one["type"], one["uid"]) for one in asked} == {(source["type"], source["uid"])}


def test_the_provider_reads_the_folder_that_the_compose_file_mounts() -> None:
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "spade.yml").read_text())["providers"]
    compose = yaml.safe_load((Path(infra.__file__).parent / "kafka.yml").read_text())
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    assert provider["options"]["path"] == f"{mounts['./grafana/provisioning']}/{OUT.parent.name}"


def test_a_value_without_a_variable_and_a_wrong_header_are_refused() -> None:
    header = "-- title: T\n-- shows: S\n-- kind: {}\n-- unit: count\n-- order: 1\n"
    panel = parse_panel("odd", header.format("table") + "SELECT {depth:UInt8}")
    with pytest.raises(ValueError, match="odd binds a value"):
        grafana_sql(panel)
    for kind in ("line", "pie", next(iter(CHARTS))):
        with pytest.raises(ValueError, match=r"odd\.sql"):
            parse_panel("odd", header.format(kind) + "SELECT 1")
