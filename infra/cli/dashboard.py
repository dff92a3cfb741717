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
    broker: options.Broker = "",
    run: Annotated[str, typer.Option("--run", help="Show this run first.", show_default=False)] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Loopback port of the page.")] = PORT,
) -> None:
    """Serve a page with the run's curves, lags and environments on this machine, until Ctrl-C.

    Only this machine can open it; from elsewhere, tunnel: ssh -L 8050:127.0.0.1:8050 HOST.
    """
    from infra.clickhouse import connect
    from infra.dashboards.server import Board, serve

    client = connect(options.require_store(store))
    settings = options.broker_settings(broker)

    def lags(run_id: str) -> list[dict[str, Any]]:
        from infra.cli.backlog import read_lags

        assert settings is not None
        return [{**asdict(row), "lag": row.lag} for row in read_lags(settings, run_id)]

    board = Board(client, lags if settings else None, run)
    options.out.print(f"the dashboard is at http://127.0.0.1:{port}/ (Ctrl-C ends it)")
    if settings is None:
        options.out.print("without a broker it shows no lag by topic: name one with --broker")
    with stoppable():
        try:
            serve(board, port)
        except KeyboardInterrupt:
            options.out.print("the dashboard has ended")
        finally:
            client.close()
