"""A run's tables made again from its records, through the same rows and blocks that the memory sink inserts.

In: a source (the log, or an archive), a run, a store whose tables hold nothing of it. Out: the rows inserted, by table. Called by
`spade memory rebuild`. Blocks; raises SettingsError (rows of the run are there), and what the source and the store raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from infra.clickhouse import Store
from infra.recordsource import LogRecord, RecordSource
from infra.tabledigest import log_tables
from schemas.errors import SettingsError
from schemas.topics import Topic
from workers.memory import BOUNDARY, MAX_BYTES
from workers.memory_rows import TableRow, blocks_of, rows_of

SAID_EVERY = 50_000  # rows


def rebuild(source: RecordSource, run_id: str, store: Store, say: Callable[[str], None] = lambda line: None) -> Counter[str]:
    """Fills the store's tables with the run's rows; table -> rows inserted, copies of records counted too."""
    require_empty(store, run_id)
    inserted: Counter[str] = Counter()
    block: list[LogRecord] = []
    size_bytes = 0
    for one in source.scan(list(Topic), run_id):
        if block and (_block_of(one) != _block_of(block[0]) or size_bytes >= MAX_BYTES):
            _insert(store, run_id, block, inserted, say)
            block, size_bytes = [], 0
        block.append(one)
        size_bytes += len(one.data)
    if block:
        _insert(store, run_id, block, inserted, say)
    if not inserted:
        raise SettingsError(f"{source.name} holds no record of run {run_id}", "Name another run with --run")
    return inserted


def require_empty(store: Store, run_id: str) -> None:
    """Raises SettingsError where a table holds rows of the run: what stood there could not be told from what is made."""
    for table in log_tables(store):
        (row,) = store.query(f"SELECT count() AS held FROM {table} WHERE run_id = {{run:String}}", {"run": run_id})  # noqa: S608  (a name that the store gave)
        if row["held"]:
            raise SettingsError(
                f"table {table} of the store already holds {row['held']} rows of run {run_id}",
                "Name another database with --store, it is made where it is missing: clickhouse://.../NEW_NAME",
            )


def _block_of(one: LogRecord) -> tuple[Topic, int, int]:
    """The sink's batches end at the same boundaries at the latest."""
    return one.topic, one.partition, one.offset // BOUNDARY


def _insert(store: Store, run_id: str, block: list[LogRecord], inserted: Counter[str], say: Callable[[str], None]) -> None:
    topic, partition = block[0].topic, block[0].partition
    rows: list[TableRow] = [row for one in block for row in rows_of(topic, one.record, partition, one.offset)]
    before = inserted.total() // SAID_EVERY
    for made in blocks_of(run_id, topic, partition, block[0].offset, block[-1].offset, rows):
        store.insert(made.table, made.columns, made.values, token=made.token)
        inserted[made.table] += len(made.values)
    if inserted.total() // SAID_EVERY > before:
        say(f"{inserted.total()} rows stored ...")
