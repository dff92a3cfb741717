"""Whether two stores hold the same of a run: rows and a digest of each table that was filled from the log.

In: a store, a run. Out: table, rows, sha256. Called by `spade memory digest` and `spade memory rebuild`. A digest is over the
logical columns (those that do not begin with "_") of the deduplicated rows, whatever their order: each row's values in
ClickHouse's RowBinary form, hashed, the hashes sorted and hashed again. Column names and types are part of it. Blocks; raises
StoreError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from infra.clickhouse import Store

# A table filled from the log has a run and says which of two rows with one key counts.
_COLUMNS = """
SELECT table, name, type FROM system.columns
WHERE database = currentDatabase()
  AND table IN (SELECT table FROM system.columns WHERE database = currentDatabase() AND name = '_version')
  AND table IN (SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'run_id')
ORDER BY table, name
"""


@dataclass(frozen=True)
class TableDigest:
    """One table of a run."""

    table: str
    rows: int
    digest: str  # sha256, hexadecimal


def log_tables(store: Store) -> list[str]:
    """The tables that are filled from the log, by name."""
    return sorted({str(row["table"]) for row in store.query(_COLUMNS)})


def digest_tables(store: Store, run_id: str) -> list[TableDigest]:
    """Every table's rows of the run, by table name."""
    columns: dict[str, list[tuple[str, str]]] = {}
    for row in store.query(_COLUMNS):
        if not str(row["name"]).startswith("_"):
            columns.setdefault(str(row["table"]), []).append((str(row["name"]), str(row["type"])))
    return [_digest(store, run_id, table, own) for table, own in columns.items()]


def differing(one: Sequence[TableDigest], other: Sequence[TableDigest]) -> list[str]:
    """Names of the tables that two stores do not hold alike."""
    left, right = ({row.table: row for row in rows} for rows in (one, other))
    return sorted(table for table in left.keys() | right.keys() if left.get(table) != right.get(table))


def _digest(store: Store, run_id: str, table: str, columns: Sequence[tuple[str, str]]) -> TableDigest:
    names = ", ".join(f"`{name}`" for name, _ in columns)
    hashes = f"SELECT SHA256(formatRow('RowBinary', {names})) AS hash FROM `{table}` FINAL WHERE run_id = {{run:String}}"  # noqa: S608  (names that the store gave)
    sql = f"SELECT count() AS rows, hex(SHA256(arrayStringConcat(arraySort(groupArray(hash))))) AS digest FROM ({hashes})"  # noqa: S608
    (row,) = store.query(sql, {"run": run_id})
    told = f"{table}\x1f{columns!r}\x1f{row['rows']}\x1f{row['digest']}"
    return TableDigest(table, int(row["rows"]), hashlib.sha256(told.encode()).hexdigest())
