"""`spade topics`, `spade migrate`, `spade status`: the log's topics, the store's tables, and how far a run is."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from infra.cli import options
from schemas.topics import PARTITIONS


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


def status(broker: options.Broker = "", run: options.RunId = "") -> None:
    """How far a run is: versions, generations, and what each stage has not read yet."""
    from infra.cli.backlog import read_backlog, read_status
    from infra.runs import find_run

    settings = options.require_broker(broker)
    run_id = find_run(settings, run)
    found = read_status(settings, run_id)
    options.out.print(f"run {run_id}: {found.state}")
    options.out.print(f"policy version {found.version}, step {found.step}, generation {found.generation} closed")
    table = Table("stage", "records not read yet", "oldest position of the group")
    for row in read_backlog(settings, run_id):
        table.add_row(options.cell(row.group), str(row.lag), options.cell(row.position))
    options.out.print(table, soft_wrap=False)
