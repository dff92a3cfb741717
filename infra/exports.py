"""A question's answer as JSON and CSV, value by value in the nearest type, text as it is.

JSON: integers exact, floats (null where not finite), booleans, null, times as ISO 8601 with Z, decimals, addresses and UUIDs as
text, arrays, tuples and maps as arrays and objects; written in ASCII, so that nothing in a text acts on a terminal.
CSV (RFC 4180, UTF-8): null is an empty cell, arrays and maps are JSON. A text that a spreadsheet would take for a formula gets
an apostrophe before it (OWASP's rule for CSV injection: = + - @, tab, carriage return), unless `raw`. Pure; called by
`spade memory`.
"""

from __future__ import annotations

import base64
import csv
import datetime
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra.clickhouse import Answer

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_records(answer: Answer) -> dict[str, Any]:
    """Columns with their ClickHouse types, and rows as objects; a name that comes twice is numbered."""
    names = _unique(answer.columns)
    return {
        "columns": [{"name": name, "type": kind} for name, kind in zip(names, answer.types, strict=True)],
        "rows": [dict(zip(names, map(plain, row), strict=True)) for row in answer.rows],
    }


def to_json(value: Any) -> str:
    """Indented ASCII JSON with a line feed at its end."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=2) + "\n"


def to_csv(answer: Answer, *, raw: bool = False, shown: Callable[[str], str] = str) -> str:
    """A header and a line a row. `shown` is applied to every text, for a terminal."""
    out = io.StringIO()
    writer = csv.writer(out)

    def cell(value: Any) -> str:
        text = _csv_value(value)
        guarded = text if raw or not _is_text(value) or not text.startswith(FORMULA) else f"'{text}"
        return shown(guarded)

    writer.writerow([cell(name) for name in answer.columns])
    writer.writerows([cell(value) for value in row] for row in answer.rows)
    return out.getvalue()


def plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return aware.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value)


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    return str(plain(value))


def _is_text(value: Any) -> bool:
    return not isinstance(value, int | float | datetime.date | None)


def _unique(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    out: list[str] = []
    for name in names:
        seen[name] += 1
        fresh = name if seen[name] == 1 else f"{name}_{seen[name]}"
        while fresh in out:
            seen[name] += 1
            fresh = f"{name}_{seen[name]}"
        out.append(fresh)
    return out
