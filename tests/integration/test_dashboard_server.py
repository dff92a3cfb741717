"""The dashboard's answers over the real store: what a generated run's rows become, and what is refused at the door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from infra.clickhouse import ClickHouseStore, StoreAddress, connect
from infra.dashboards.door import POLICY
from infra.dashboards.panels import CHARTS, ask, load_panels
from infra.dashboards.server import PAGE, Board, make_app
from infra.local.ports import free_ports
from infra.local.store import LocalStore
from schemas.errors import BrokerError
from tests.generatedrun import HOSTILE, MEMBERS, REFUSED, GeneratedRun

pytestmark = pytest.mark.integration

PORT = 8050
OWN = f"http://127.0.0.1:{PORT}"
GENERATIONS = 6


@pytest.fixture(scope="module")
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def run(client: ClickHouseStore) -> GeneratedRun:
    made = GeneratedRun("dashboard-server", GENERATIONS)
    made.fill(client)
    return made


@pytest.fixture
def page(client: ClickHouseStore) -> TestClient:
    return TestClient(make_app(Board(client), PORT), base_url=OWN)


def answer(page: TestClient, path: str, **values: str) -> Any:
    found = page.get(f"/api/{path}", params=values)
    assert found.status_code == 200, found.text
    return found.json()


def test_every_panel_asks_with_bound_values_and_the_engine_answers(client: ClickHouseStore, run: GeneratedRun) -> None:
    values = {"run": run.run_id, "search": "", "limit": 50, "env": run.env_id(1, 0), "play": f"plain-0-{run.env_id(1, 0)}"}
    for panel in load_panels().values():
        assert panel.parameters.keys() <= values.keys()
        rows = ask(client, panel, values)
        assert rows, f"{panel.name} shows nothing of a run that has everything"
        if panel.kind in CHARTS:
            assert panel.x in rows[0]


def test_the_charts_show_what_the_run_recorded(page: TestClient, run: GeneratedRun) -> None:
    found = answer(page, "charts", run=run.run_id)
    rows = found["rows"]
    assert [row["without hint"] for row in rows["win_rate"]] == [run.win_rate(number) for number in range(GENERATIONS)]
    assert rows["verdicts"][0] == {"generation": 0, "admitted": MEMBERS, **{rule: 1 for rule, _ in REFUSED}}
    assert rows["frontier"][0] == {"generation": 0, "frontier": 2 / MEMBERS, "too easy": 1 / MEMBERS, "too hard": 1 / MEMBERS}
    assert [row["designer"] for row in rows["policy_lag"]] == [0, 1, 2, 3, 3, 3]
    assert rows["effective_samples"][0] == {"step": 0, "agent": 0.97, "designer": 0.9}
    assert [row["nano"] for row in rows["evaluations"]] == [0.3, 0.6, 0.9]
    regret = rows["regret"][0]
    assert regret["regret high"] - regret["regret"] == pytest.approx(0.04)
    assert sum(row["play"] for row in rows["stage_rates"]) > 0
    assert found["alarms"] == []


def test_a_run_without_rows_is_empty_and_not_an_error(page: TestClient) -> None:
    found = answer(page, "charts", run="no-such-run")
    assert not any(found["rows"].values())


def test_the_table_of_environments_is_filtered_by_bound_text(page: TestClient, run: GeneratedRun) -> None:
    all_rows = answer(page, "environments", run=run.run_id)["rows"]
    assert len(all_rows) == GENERATIONS * (MEMBERS + len(REFUSED))
    assert all_rows[0]["generation"] == GENERATIONS - 1
    assert {row["verdict"] for row in all_rows} == {"admitted", *(rule for rule, _ in REFUSED)}
    witness = answer(page, "environments", run=run.run_id, search="WITNESS")["rows"]
    assert len(witness) == GENERATIONS
    assert witness[0]["win rate"] is None
    for injected in ("' OR 1 --", "') UNION ALL SELECT 1 --", "{limit:UInt32}", "%"):
        assert answer(page, "environments", run=run.run_id, search=injected)["rows"] == []
    assert answer(page, "charts", run=f"{run.run_id}' OR '1' = '1")["rows"]["win_rate"] == []


def test_an_environment_has_its_lineage_and_its_plays_and_hostile_text_is_made_visible(
    page: TestClient, run: GeneratedRun
) -> None:
    env = run.env_id(2, 1)
    found = answer(page, "environment", run=run.run_id, env=env)
    assert found["parents"][0]["env_id"] == run.env_id(1, 1)
    assert found["children"][0]["env_id"] == run.env_id(3, 1)
    assert len(found["plays"]) == 4
    assert found["proof"][0]["rule"] == "witness"
    for text in (found["verdict"]["full_source"], found["verdict"]["hint"], found["prompt"]["document_text"]):
        assert "<script>" in text  # the page sets it as text; escaping it twice would show entities
        assert "\\u202e" in text
        assert "\u202e" not in text
        assert "\x1b" not in text
    play = answer(page, "episode", run=run.run_id, env=env, play=found["plays"][0]["play_id"])
    assert play["actions"][0].startswith("2 <img")


def test_a_refused_design_has_its_rule_and_evidence_and_no_plays(page: TestClient, run: GeneratedRun) -> None:
    for slot, (rule, evidence) in enumerate(REFUSED, MEMBERS):
        found = answer(page, "environment", run=run.run_id, env=run.env_id(2, slot))
        assert found["place"].startswith("refused")
        assert found["verdict"]["rule"] == rule
        assert found["verdict"]["evidence"].startswith(evidence)
        assert found["plays"] == []


def test_what_the_store_does_not_know_is_said(page: TestClient, run: GeneratedRun) -> None:
    gone = page.get("/api/environment", params={"run": run.run_id, "env": "nothing-like-it"})
    assert gone.status_code == 404
    assert "nothing-like-it" in gone.json()["error"]
    assert page.get("/api/episode", params={"run": run.run_id, "env": "x", "play": "y"}).status_code == 404


def test_an_answer_that_has_not_changed_is_not_sent_again(page: TestClient, run: GeneratedRun) -> None:
    first = page.get("/api/environments", params={"run": run.run_id})
    again = page.get("/api/environments", params={"run": run.run_id}, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_store_that_is_away_is_an_answer_with_its_cause_and_without_its_password() -> None:
    (port,) = free_ports(1)
    away = ClickHouseStore(StoreAddress("127.0.0.1", port, "spade", "hunter-7", "spade"), timeout_s=5)
    found = TestClient(make_app(Board(away), PORT), base_url=OWN).get("/api/runs")
    assert found.status_code == 503
    assert "can't reach store" in found.json()["error"]
    assert "hunter-7" not in found.text


def test_a_broker_that_is_away_takes_only_the_lags_with_it(client: ClickHouseStore, run: GeneratedRun) -> None:
    def lags(_run: str) -> list[dict[str, Any]]:
        raise BrokerError("can't reach broker 127.0.0.1:1")

    page = TestClient(make_app(Board(client, lags), PORT), base_url=OWN)
    assert page.get("/api/lag", params={"run": run.run_id}).json() == {"error": "can't reach broker 127.0.0.1:1"}
    assert answer(page, "charts", run=run.run_id)["rows"]["win_rate"]


@pytest.mark.parametrize(
    "host", [f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"127.0.0.1.nip.example:{PORT}", ""]
)
def test_another_host_name_is_refused(page: TestClient, host: str) -> None:
    for path in ("/", "/api/runs", "/page/dashboard.js"):
        refused = page.get(path, headers={"host": host})
        assert refused.status_code == 421
        assert HOSTILE not in refused.text
        assert "content-security-policy" in refused.headers


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT + 1}"])
def test_another_pages_scripts_are_refused(page: TestClient, origin: str) -> None:
    assert page.get("/api/runs", headers={"origin": origin}).status_code == 403


def test_its_own_names_are_let_in_and_nothing_can_be_changed(page: TestClient) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert page.get("/", headers={"host": f"{name}:{PORT}", "origin": f"http://{name}:{PORT}"}).status_code == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.request(method, "/api/runs").status_code == 405


def test_every_answer_forbids_foreign_scripts_and_framing(page: TestClient) -> None:
    for path in ("/", "/api/runs", "/page/charts.js", "/no-such-page"):
        headers = page.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert "script-src 'self';" in POLICY
    assert "unsafe" not in POLICY


def test_only_the_pages_own_files_are_served(page: TestClient) -> None:
    for path in ("/page/../server.py", "/page/%2e%2e/server.py", "/page/uPlot-LICENSE", "/page/", "/panels/runs.sql"):
        assert page.get(path).status_code == 404
    assert page.get("/page/dashboard.js").headers["content-type"].startswith("text/javascript")


def test_the_page_has_no_script_or_style_of_its_own_inside_and_sets_text_only() -> None:
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert "<style" not in html
    assert " style=" not in html
    assert "http:" not in html
    assert html.count("<script") == html.count("<script src=")
    for file in ("dashboard.js", "charts.js", "detail.js", "parts.js"):
        code = (PAGE / file).read_text(encoding="utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert way not in code, f"{file} uses {way}"


def test_rows_with_numbers_that_json_lacks_are_still_json(client: ClickHouseStore) -> None:
    from infra.dashboards.plainjson import to_json

    rows = client.query(
        "SELECT nan AS a, inf AS b, toDateTime64('2026-01-01 00:00:00', 3, 'UTC') AS c, map('k', 1.5) AS d, [1, 2] AS e"
    )
    assert json.loads(to_json(rows)) == [{"a": None, "b": None, "c": 1767225600.0, "d": {"k": 1.5}, "e": [1, 2]}]
