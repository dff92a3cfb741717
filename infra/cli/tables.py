"""`spade topics`, `spade migrate`, `spade status`: the log's topics, the store's tables, and how far a run is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from schemas.errors import BrokerError, StageTimeoutError
from schemas.topics import PARTITIONS

if TYPE_CHECKING:
    from infra.cli.statusscreen import Follower, Picture

RATE_S = 1.0


def topics(
    broker: options.Broker = "",
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of each topic.")] = PARTITIONS,
    replication: Annotated[int, typer.Option(help="Replicas of each topic; -1: the broker's default.")] = -1,
) -> None:
    """Create the topics that are missing, on any Kafka. Can be repeated."""
    from infra.topics import create_topics
    from schemas.topics import Topic

    settings = options.require_broker(broker)
    made = create_topics(settings, partitions=partitions, replication=replication)
    options.out.print(f"{settings.address}: {len(made)} topics made, {len(Topic) - len(made)} stood already")


def migrate(store: options.Store = "") -> None:
    """Create or update the store's tables, on any ClickHouse. Can be repeated."""
    from infra.migrate import migrate as apply_migrations

    applied = apply_migrations(options.require_store(store))
    options.out.print(f"migrations applied: {', '.join(map(str, applied)) if applied else 'none, the tables are up to date'}")


def status(
    broker: options.Broker = "",
    store: options.Store = "",
    run: options.RunId = "",
    once: Annotated[bool, typer.Option("--once", help="Print once and end; so it is too where no terminal shows it.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.5, max=3600, help="Seconds between looks.")] = 2.0,
) -> None:
    """How a run is doing: stages, rates, lag by topic and group, policy age, alarms, the last rejected designs. Ctrl-C ends it.

    The log alone tells all but the rejected designs, for which it asks the store.
    """
    from infra.cli.statusscreen import Follower, render
    from infra.clickhouse import connect
    from infra.runs import find_run

    settings = options.require_broker(broker)
    dsn = store or options.standing().get("store", "")
    options.refuse_shown_password(dsn)
    client = connect(dsn) if dsn else None
    try:
        with Follower(settings, find_run(settings, run), client) as follower:
            picture = follower.look()
            if once or not options.out.is_terminal:
                time.sleep(RATE_S)  # a rate needs two looks
                options.out.print(render(follower.look()), soft_wrap=False)
            else:
                picture = _follow(follower, picture, every_s)
                options.out.print(render(picture), soft_wrap=False)
    finally:
        if client is not None:
            client.close()


def _follow(follower: Follower, picture: Picture, every_s: float) -> Picture:
    """Shows the run until it has finished or Ctrl-C; the last picture. A broker that is away is said and tried again."""
    from rich.live import Live

    from infra.cli.interrupts import stoppable
    from infra.cli.statusscreen import render

    with stoppable(), Live(render(picture), console=options.out, screen=True, auto_refresh=False) as live:
        try:
            while not picture.status.finished:
                time.sleep(every_s)
                trouble = ""
                try:
                    picture = follower.look()
                except (BrokerError, StageTimeoutError) as problem:
                    trouble = str(problem)
                live.update(render(picture, trouble), refresh=True)
        except KeyboardInterrupt:
            return picture
    return picture
