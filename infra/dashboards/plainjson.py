"""Store rows as JSON for the page. Numbers that JSON lacks become null, times become seconds, and every text is made visible.

What a design wrote may hold control characters and bidirectional overrides; markup in it is harmless, since the page only ever
sets text. Pure; called by infra.dashboards.server.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from infra.plaintext import escape

LONGEST_TEXT: Final = 65_536  # characters of one value; a design is at most 32 KiB


def to_json(value: Any) -> bytes:
    """UTF-8 JSON of rows, tables and plain values."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return round(aware.timestamp(), 3)
    if isinstance(value, Mapping):
        return {escape(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return escape(str(value), LONGEST_TEXT)
