"""A person's read-only question to any store: judged, bounded, answered as a table.

In: SQL of whoever sits at the terminal. Out: an Answer. Two walls: the question's syntax tree is judged before it is asked
(infra/readonly.py; the embedded store's server judges it again, for every caller), and the engine runs it with readonly = 1,
under which it refuses writes, table functions that leave the database, and any change of a setting, that of readonly too.
Called by `spade memory --sql`. Blocks up to LIMITS; raises SettingsError (refused here) and StoreError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.clickhouse import Answer, ClickHouseStore
from infra.readonly import read_refused, text_refused
from schemas.errors import SettingsError

LIMITS: Final[Mapping[str, int | str]] = {
    "max_execution_time": 55,  # s; below the client's own patience, so that the engine names the cause
    "max_result_rows": 1_000_000,
    "max_result_bytes": 256 * 2**20,
    "max_memory_usage": 2 * 2**30,
    "result_overflow_mode": "throw",
}
LONGEST_QUESTION: Final = 100_000  # characters


def ask_question(store: ClickHouseStore, sql: str, params: Mapping[str, Any] | None = None) -> Answer:
    """The whole answer. Values are bound as `{name:Type}`."""
    text = sql.strip().rstrip(";").rstrip()
    if not text:
        raise SettingsError("the question is empty", "Write for example --sql 'SELECT count() FROM episodes'")
    if len(text) > LONGEST_QUESTION:
        raise SettingsError(f"the question has {len(text)} characters", f"Write at most {LONGEST_QUESTION}")
    why = text_refused(text) or _judged(store, text, params)
    if why:
        raise SettingsError(why, "Ask for rows of the tables: spade memory --sql 'SHOW TABLES'")
    return store.answer(text, params, LIMITS)


def _judged(store: ClickHouseStore, text: str, params: Mapping[str, Any] | None) -> str:
    """Why the question may not be asked, or "". Asks the store to parse it, which executes nothing."""
    # one statement, and no second behind it
    ((canonical,),) = store.answer("SELECT formatQuery({spade_text:String})", {"spade_text": text}, LIMITS).rows
    tree = "\n".join(str(row[0]) for row in store.answer(f"EXPLAIN AST {text}", params, LIMITS).rows)
    names = store.answer("SELECT lower(name) FROM system.table_functions", None, LIMITS).rows
    return read_refused(tree, frozenset(str(row[0]) for row in names), store.address.database, str(canonical))
