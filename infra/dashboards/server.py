"""The local page's server: static files, and JSON from the store by fixed questions.

In: a store, and where there is a broker a function that tells lags. Out: a Starlette application. Called by `spade dashboard` and
tests. Each answer blocks a thread for some small queries; a store or broker that fails is an answer with its cause (503), so that
the page can say so and go on asking. What the page may ask: the panels by name, with values that are bound.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from infra.clickhouse import Row, Store
from infra.clock import Clock, SystemClock
from infra.dashboards.door import Application, Door
from infra.dashboards.panels import CHARTS, ON_BOARDS, ask, load_panels, spread
from infra.dashboards.plainjson import to_json
from infra.lineage import read_lineage
from infra.report.queries import read_alarms
from schemas.errors import SettingsError, SpadeError

PAGE: Final = Path(__file__).parent / "page"
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FRESH_S: Final = 2.0  # an answer serves every tab for so long
MOST_RUNS_KEPT: Final = 8
MOST_ROWS: Final = 500
LONGEST_VALUE: Final = 200
LagSource = Callable[[str], list[dict[str, Any]]]


@dataclass
class Board:
    """What the page shows of a run."""

    store: Store
    lags: LagSource | None = None
    first_run: str = ""
    clock: Clock = field(default_factory=SystemClock)
    _kept: dict[tuple[str, str], tuple[float, bytes]] = field(default_factory=dict)
    # A broker that is away must not hold up what the store knows: each has a lock of its own.
    _asking: dict[str, threading.Lock] = field(default_factory=lambda: {name: threading.Lock() for name in ("charts", "lag")})

    def runs(self) -> dict[str, Any]:
        """Every run, and which one to show first."""
        rows = ask(self.store, load_panels()["runs"], {})
        known = [str(row["run"]) for row in rows]
        first = self.first_run or next((str(row["run"]) for row in rows if row["state"] != "finished"), known[0] if known else "")
        return {"runs": rows, "first": first, "broker": self.lags is not None}

    def charts(self, run: str) -> dict[str, Any]:
        """Every panel's rows but the table of environments, and the alarms."""
        panels = [panel for panel in load_panels().values() if panel.kind in CHARTS or panel.name == "rejected"]
        rows = {panel.name: spread(panel, ask(self.store, panel, {"run": run})) for panel in panels}
        return {"rows": rows, "alarms": read_alarms(self.store, run)}

    def lag(self, run: str) -> dict[str, Any]:
        """What each consumer group of the run has not acknowledged, by topic; from the broker, not from the store."""
        return {"rows": self.lags(run) if self.lags else []}

    def kept(self, what: str, run: str, make: Callable[[str], Any]) -> bytes:
        """The JSON of `make(run)`, at most FRESH_S old; one request makes it, the others wait."""
        with self._asking[what]:
            now = self.clock.monotonic()
            found = self._kept.get((what, run))
            if found is None or now - found[0] > FRESH_S:
                found = (now, to_json(make(run)))
                if len(self._kept) >= MOST_RUNS_KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[what, run] = found
            return found[1]


def make_app(board: Board, port: int) -> Application:
    """The application, behind its door."""

    def panels(_request: Request) -> Response:
        shown = [{key: value for key, value in asdict(one).items() if key != "sql"} for one in load_panels().values()]
        return _json(to_json([one for one in shown if one["kind"] in ON_BOARDS]))

    def charts(request: Request) -> Response:
        return _tagged(request, board.kept("charts", _value(request, "run"), board.charts))

    def lag(request: Request) -> Response:
        return _json(board.kept("lag", _value(request, "run"), board.lag))

    def environments(request: Request) -> Response:
        values = {"run": _value(request, "run"), "search": _value(request, "search"), "limit": MOST_ROWS}
        rows = ask(board.store, load_panels()["environments"], values)
        return _tagged(request, to_json({"rows": rows, "most": MOST_ROWS}))

    def environment(request: Request) -> Response:
        found = read_lineage(board.store, _value(request, "env"), _value(request, "run"))
        return _json(to_json({**asdict(found), "proof": found.proof}))

    def episode(request: Request) -> Response:
        values = {name: _value(request, name) for name in ("run", "env", "play")}
        rows: list[Row] = ask(board.store, load_panels()["episode"], values)
        if not rows:
            raise SettingsError("the store knows no such play", "Go back to its environment")
        return _json(to_json(rows[0]))

    routes = [
        Route("/", _page("index.html")),
        *[Route(f"/page/{file.name}", _page(file.name)) for file in sorted(PAGE.iterdir()) if file.suffix in TYPES],
        Route("/api/runs", _told(lambda _request: _json(to_json(board.runs())))),
        *[
            Route(f"/api/{answer.__name__}", _told(answer))
            for answer in (panels, charts, lag, environments, environment, episode)
        ],
    ]
    return Door(Starlette(routes=routes), port)


def serve(board: Board, port: int) -> None:
    """Serves on the loopback address until it is interrupted. Raises PortInUseError."""
    import uvicorn

    from infra.local.ports import LOOPBACK, require_free

    require_free(port, "dashboard")
    config = uvicorn.Config(
        make_app(board, port), host=LOOPBACK, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=2
    )
    uvicorn.Server(config).run()


Answer = Callable[[Request], Response]


def _page(name: str) -> Answer:
    def answer(_request: Request) -> Response:
        return FileResponse(PAGE / name, media_type=TYPES[Path(name).suffix])

    return answer


def _told(answer: Answer) -> Answer:
    """An error of ours becomes an answer that says its cause; anything else is a crash of that request."""

    def guarded(request: Request) -> Response:
        try:
            return answer(request)
        except SettingsError as error:
            return _json(to_json({"error": str(error)}), HTTPStatus.NOT_FOUND)
        except SpadeError as error:
            return _json(to_json({"error": str(error)}), HTTPStatus.SERVICE_UNAVAILABLE)

    return guarded


def _value(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[:LONGEST_VALUE]


def _json(body: bytes, status: int = HTTPStatus.OK) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def _tagged(request: Request, body: bytes) -> Response:
    """304 where the page has these very bytes."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"etag": tag})
    return Response(body, media_type="application/json", headers={"etag": tag})
