"""A real headless browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, sync_playwright

from tests.programs import find_program

NAMES = ("chromium-headless-shell", "chromium")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that reaches only what runs here."""
    with sync_playwright() as playwright:
        # Chromium refuses its own sandbox to root; it opens nothing but our page.
        opened = playwright.chromium.launch(executable_path=find_program(*NAMES), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


@contextlib.contextmanager
def opened_page(
    in_browser: Browser, address: str, width: int, height: int, scheme: str = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """A page of that size, and everything that its console complains of or that it asks another host for."""
    context = in_browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=width < 600,
        locale="en-GB",
        timezone_id="UTC",
    )
    own = address.partition("#")[0]
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda problem: complaints.append(str(problem)))
    page.on("request", lambda request: None if request.url.startswith(own) else complaints.append(request.url))
    try:
        page.goto(address)
        yield page, complaints
    finally:
        context.close()
