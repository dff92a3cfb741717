"""Numbered SQL migrations of the store: infra/migrations/NNN_name.up.sql with its .down.sql.

In: a DSN. Out: the versions applied. On clickhouse-migrations, which records them in the database's table `schema_versions`.
Called by `spade migrate`, `spade up`, `spade demo` and the tests. Blocks while statements run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.clickhouse import connect, parse_dsn, store_error
from schemas.errors import MigrationError

FOLDER = Path(__file__).with_name("migrations")


def migrate(dsn: str, folder: Path = FOLDER) -> list[int]:
    """Creates the database where it is missing and applies what is pending; the versions applied, [] when there was nothing.

    Raises MigrationError for a database that has migrations which this code does not know, or others under the same number.
    """
    address = parse_dsn(dsn)
    store = connect(dsn, database="")
    try:
        store.command("CREATE DATABASE IF NOT EXISTS {name:Identifier}", {"name": address.database})
    finally:
        store.close()
    return [int(row.version) for row in _run(dsn, folder, "migrate")]


def roll_back(dsn: str, steps: int = 1, folder: Path = FOLDER) -> list[int]:
    """Undoes the last `steps` migrations by their .down.sql; the versions undone, newest first."""
    return [int(version) for version in _run(dsn, folder, "rollback", steps=steps)]


def _run(dsn: str, folder: Path, action: str, **options: Any) -> list[Any]:
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from clickhouse_migrations.clickhouse_cluster import ClickhouseCluster
    from clickhouse_migrations.exceptions import MigrationException

    address = parse_dsn(dsn)
    cluster = ClickhouseCluster(
        db_host=address.host,
        db_port=str(address.port),
        db_user=address.user,
        db_password=address.password,
        db_name=address.database,
        secure=address.secure,
        ca_cert=address.ca_file or None,
        driver="clickhouse-connect",
    )
    if action == "migrate":
        options["create_db_if_no_exists"] = False
    try:
        return list(getattr(cluster, action)(address.database, folder, **options))
    except MigrationException as problem:
        raise MigrationError(
            f"database {address.shown} does not fit this code's migrations ({' '.join(str(problem).split())})",
            "Use the version of spade that made it, or another database",
        ) from problem
    except (ClickHouseError, OSError) as problem:
        raise store_error(address, problem) from problem
