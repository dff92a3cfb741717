"""`spade memory digest` and `spade memory rebuild`: does the store hold what the log says, and its tables made again from it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from infra.cli import options
from infra.cli.interrupts import stoppable
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from infra.clickhouse import ClickHouseStore
    from infra.recordsource import RecordSource
    from infra.tabledigest import TableDigest

SHOWN = 16  # digits of a digest
Compare = Annotated[
    str,
    typer.Option(
        "--compare",
        metavar="DSN",
        help="Hold it against the same run in this store. Exit 1: a table differs.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the digests as JSON.")]


def digest(
    store: options.Store = "",
    folder: options.RunFolder = "",
    run: options.RunId = "",
    compare: Compare = "",
    as_json: Json = False,
) -> None:
    """Rows and digest of each table of a run, over what its records said and not over where a row lies.

    Two stores that were filled from the same records print the same digests.
    Without --run: the run that was stored last. Exit 0: told (and equal, with
    --compare); 1: a table differs.
    """
    from infra.cli.runstore import newest_run, run_store

    with run_store(store, folder) as opened:
        run_id = run or opened.run_id or newest_run(opened.store)
        _show(run_id, _digests(opened.store, run_id), compare, as_json=as_json)


def rebuild(
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="SPADE_STORE",
            metavar="DSN",
            help="The database to fill: clickhouse://USER@HOST:PORT/DB?password_file=FILE. It is made where it is missing and "
            "must hold nothing of the run.",
            show_default=False,
        ),
    ] = "",
    run: options.RunId = "",
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Read a folder of `spade archive`, and no broker.", show_default=False)
    ] = None,
    broker: options.Broker = "",
    compare: Compare = "",
    as_json: Json = False,
) -> None:
    """Make the tables of a run again, from the log or an archive, in an empty database, and print their digests.

    With --compare DSN the digests are held against those of the store that the
    memory worker filled. Exit 0: done (and equal); 1: a table differs.
    """
    from infra.clickhouse import connect
    from infra.migrate import migrate
    from workers.rebuild import rebuild as rebuild_tables

    dsn = options.require_store(store)
    with stoppable():
        source, run_id = _source(broker, archive, run)
        migrate(dsn)
        with contextlib.closing(connect(dsn)) as opened:
            inserted = rebuild_tables(source, run_id, opened, _told)
            _told(f"{inserted.total()} rows made from {source.name}")
            _show(run_id, _digests(opened, run_id), compare, as_json=as_json)


def _told(line: str) -> None:
    """Progress: on standard error, so that --json stays JSON."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _source(broker: str, archive: Path | None, run: str) -> tuple[RecordSource, str]:
    """What is read, and the run in it that is meant."""
    if archive is not None:
        from infra.archive import Archive

        opened = Archive(archive)
        if run and run != opened.manifest.run_id:
            raise SettingsError(f"{opened.name} holds run {opened.manifest.run_id}, not {run}", "Name the archive of that run")
        return opened, opened.manifest.run_id
    from infra.recordsource import BrokerSource
    from infra.runs import find_run

    settings = options.require_broker(broker)
    return BrokerSource(settings), find_run(settings, run)


def _digests(store: ClickHouseStore, run_id: str) -> list[TableDigest]:
    from infra.tabledigest import digest_tables

    found = digest_tables(store, run_id)
    if not any(one.rows for one in found):
        raise SettingsError(f"store {store.address.shown} holds nothing of run {run_id}", "Name another with --run or --store")
    return found


def _elsewhere(dsn: str, run_id: str) -> list[TableDigest]:
    from infra.clickhouse import connect

    options.refuse_shown_password(dsn, "--compare")
    with contextlib.closing(connect(dsn)) as store:
        return _digests(store, run_id)


def _show(run_id: str, found: Sequence[TableDigest], compare: str, *, as_json: bool) -> None:
    """Prints the digests, beside those of the other store where one is named; exit 1 where they differ."""
    from infra.tabledigest import differing

    other = _elsewhere(compare, run_id) if compare else []
    wrong = differing(found, other) if compare else []
    beside = {one.table: one for one in other}
    if as_json:
        rows = [{"table": one.table, "rows": one.rows, "digest": one.digest} for one in found]
        print(json.dumps({"run_id": run_id, "tables": rows, **({"differing": wrong} if compare else {})}))  # noqa: T201
    else:
        table = Table("table", "rows", "digest", *(["rows there", "digest there", ""] if compare else []))
        for one in found:
            there = beside.get(one.table)
            told = [str(there.rows), there.digest[:SHOWN]] if there else ["", "no such table"]
            extra = [*told, "differs" if one.table in wrong else "equal"] if compare else []
            table.add_row(one.table, str(one.rows), one.digest[:SHOWN], *extra)
        options.out.print(table, soft_wrap=False)
        options.out.print(f"run {run_id}: {sum(one.rows for one in found)} rows in {len(found)} tables")
        if compare:
            options.out.print(f"differing: {', '.join(wrong)}" if wrong else "every table is equal in both")
    if wrong:
        raise typer.Exit(1)
