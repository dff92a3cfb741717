"""The dashboard in a real headless browser, over the real store: what is seen, reached by keyboard, and not run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # ships no types
from playwright.sync_api import Browser, Page, expect

from infra.clickhouse import ClickHouseStore, connect
from infra.dashboards.panels import CHARTS, load_panels
from infra.dashboards.server import Board, make_app
from infra.local.ports import LOOPBACK, free_ports
from infra.local.store import LocalStore
from tests.browser import browser, opened_page
from tests.generatedrun import MEMBERS, GeneratedRun

pytestmark = pytest.mark.integration

DESK, PHONE = (1280, 900), (390, 844)
WAIT_MS = 90_000
expect.set_options(timeout=WAIT_MS)
READY_S = 60.0
TITLES = [panel.title for panel in load_panels().values() if panel.kind in CHARTS]


@pytest.fixture(scope="module")
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def address(client: ClickHouseStore) -> Iterator[str]:
    """The page, served by the project's own application in a thread."""
    (port,) = free_ports(1)

    def lags(run: str) -> list[dict[str, object]]:
        row = {"topic": "spade-env-proposed", "committed": 3, "end": 10, "lag": 7, "position": "spade-env-proposed:0 at 3 of 10"}
        return [{"group": f"spade-validate-{run}", **row}]

    config = uvicorn.Config(make_app(Board(client, lags), port), host=LOOPBACK, port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + READY_S
    while not server.started and time.monotonic() < end:
        time.sleep(0.05)
    assert server.started
    yield f"http://{LOOPBACK}:{port}/"
    server.should_exit = True
    thread.join(READY_S)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def run(client: ClickHouseStore) -> GeneratedRun:
    made = GeneratedRun("dashboard-page", 8)
    made.fill(client)
    return made


def ready(page: Page) -> Page:
    """The page once it has drawn what it asked for."""
    expect(page.locator("#environments tbody tr").first).to_be_visible()
    expect(page.locator("#charts canvas")).to_have_count(len(TITLES))
    return page


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_every_chart_and_table_is_drawn_without_a_complaint_and_nothing_sticks_out(
    chromium: Browser, address: str, run: GeneratedRun, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    with opened_page(chromium, f"{address}#run={run.run_id}", *size, scheme) as (page, complaints):
        ready(page)
        assert page.locator("#charts h2").all_inner_texts() == TITLES
        for card in page.locator("#charts .card").all():
            drawn = card.locator(".chart").evaluate(
                """(chart) => { const canvas = chart.querySelector("canvas");
                  const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                  return new Set(new Uint32Array(bytes.buffer)).size }"""
            )
            assert drawn > 20, card.inner_text()  # different colours: axes, grid and lines with their soft edges
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        small = page.locator("button:visible, select:visible, summary:visible").evaluate_all(
            "(all) => all.filter((one) => one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"
        )
        assert small == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(16, 19, 23)") == (scheme == "dark")
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert (tmp_path / "page.png").stat().st_size > 10_000
        assert complaints == []


def test_the_page_asks_no_other_host_and_tells_the_lag(chromium: Browser, address: str, run: GeneratedRun) -> None:
    with opened_page(chromium, f"{address}#run={run.run_id}", *DESK) as (page, complaints):
        ready(page)
        row = page.locator("#lag tbody tr")
        expect(row).to_have_count(1)
        assert row.locator("td").all_inner_texts() == [
            "spade-validate",
            "spade-env-proposed",
            "7",
            "spade-env-proposed:0 at 3 of 10",
        ]
        assert complaints == []


def test_an_environment_opens_by_keyboard_and_hostile_text_stays_text(chromium: Browser, address: str, run: GeneratedRun) -> None:
    with opened_page(chromium, f"{address}#run={run.run_id}", *DESK) as (page, complaints):
        ready(page)
        page.locator("body").press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the table of environments"
        page.keyboard.press("Enter")
        button = page.locator("#environments tbody button").first
        button.focus()
        page.keyboard.press("Enter")
        dialog = page.locator("#detail")
        expect(dialog.get_by_role("heading", name="Source")).to_be_visible()
        assert page.evaluate("document.activeElement.id") == "detail-title"
        source = dialog.get_by_role("region", name="Source").inner_text()
        assert "<script>window.pwned=1</script>" in source
        assert "\\u202egnirts" in source
        dialog.get_by_role("button", name="Play ").first.click()
        expect(dialog.get_by_text("Ended by")).to_be_visible()
        assert '2 <img src=x onerror="window.pwned=1">' in dialog.inner_text()
        dialog.get_by_role("button", name="Back to environment").click()
        expect(dialog.get_by_role("heading", name="Source")).to_be_visible()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == button.get_attribute("aria-label")
        assert page.evaluate("window.pwned") is None
        assert page.locator("img, script:not([src])").count() == 0
        assert complaints == []


def test_numbers_stand_in_a_table_behind_each_chart_and_the_chart_says_them(
    chromium: Browser, address: str, run: GeneratedRun
) -> None:
    with opened_page(chromium, f"{address}#run={run.run_id}", *DESK) as (page, _):
        ready(page)
        card = page.locator("#charts .card").first
        card.locator("summary").press("Enter")
        rows = card.locator("tbody tr")
        expect(rows).to_have_count(run.generations)
        assert rows.last.locator("td").all_inner_texts() == [
            "7",
            f"{100 * run.win_rate(7):.1f} %",
            f"{100 * run.win_rate(7) + 10:.1f} %",
        ]
        label = card.get_by_role("img").get_attribute("aria-label") or ""
        assert label.startswith(f"{TITLES[0]}: {run.generations} points over generation 0 to 7; the last: without hint")


def test_it_goes_on_while_the_run_does_and_stops_when_paused(chromium: Browser, address: str, client: ClickHouseStore) -> None:
    live = GeneratedRun("dashboard-live", 2)
    live.fill(client)
    with opened_page(chromium, f"{address}#run={live.run_id}", *DESK) as (page, complaints):
        ready(page)
        tile = page.locator(".tile").first
        expect(tile).to_contain_text("2")
        live.add_generation(2)
        live.fill(client)
        expect(tile).to_contain_text("3")
        expect(page.locator("#said")).to_have_text("Generation 2 has closed.")
        page.get_by_role("button", name="Pause").click()
        live.add_generation(3)
        live.fill(client)
        page.wait_for_timeout(5000)
        expect(tile).to_contain_text("3")
        page.get_by_role("button", name="Go on").click()
        expect(tile).to_contain_text("4")
        assert complaints == []


def test_the_filter_narrows_the_table_and_says_how_many_it_found(chromium: Browser, address: str, run: GeneratedRun) -> None:
    with opened_page(chromium, f"{address}#run={run.run_id}", *DESK) as (page, _):
        ready(page)
        page.get_by_label("Filter").fill("witness")
        expect(page.locator("#found")).to_have_text(f"{run.generations} found")
        page.get_by_label("Filter").fill("' OR 1=1 --")
        expect(page.locator("#environments .scroll")).to_have_text("No design fits.")
        page.get_by_label("Filter").fill("admitted")
        expect(page.locator("#found")).to_have_text(f"{run.generations * MEMBERS} found")


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_axe_finds_nothing_that_bars_anyone(
    chromium: Browser, address: str, run: GeneratedRun, size: tuple[int, int], scheme: str
) -> None:
    with opened_page(chromium, f"{address}#run={run.run_id}", *size, scheme) as (page, _):
        ready(page)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.locator("#environments tbody button").first.click()
        expect(page.locator("#detail pre").first).to_be_visible()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
