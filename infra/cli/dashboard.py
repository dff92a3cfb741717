"""`spade dashboard`: the local page over a run, live while it goes on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable

PORT = 8050


def dashboard(
    store: options.Store = "",
    folder: options.RunFolder = "",
    broker: options.Broker = "",
    run: Annotated[str, typer.Option("--run", help="Show this run first.", show_default=False)] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Loopback port of the page.")] = PORT,
) -> None:
    """Serve a page with the run's curves, lags and environments on this machine, until Ctrl-C.

    Only this machine can open it; from elsewhere, tunnel: ssh -L 8050:127.0.0.1:8050 HOST.
    Default store: that of `spade up`, else that of the newest run in the folder
    runs. With --dir, that of a run which may have ended.
    """
    from infra.cli.runstore import run_store
    from infra.dashboards.server import Board, serve
    from infra.local.ports import require_free

    require_free(port, "dashboard")  # before an address is told that is another's
    settings = options.broker_settings(broker)

    def lags(run_id: str) -> list[dict[str, Any]]:
        from infra.cli.backlog import read_lags

        assert settings is not None
        return [{**asdict(row), "lag": row.lag} for row in read_lags(settings, run_id)]

    with stoppable(), run_store(store, folder) as opened:
        board = Board(opened.store, lags if settings else None, run or opened.run_id)
        options.out.print(f"the dashboard is at http://127.0.0.1:{port}/ (Ctrl-C ends it)")
        if settings is None:
            options.out.print("without a broker it shows no lag by topic: name one with --broker")
        try:
            serve(board, port)
        except KeyboardInterrupt:
            options.out.print("the dashboard has ended")
