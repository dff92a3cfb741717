"""Who may ask the embedded store, and what a read-only question may be.

Covered: callers without the token; web pages (a browser sends Origin, and a rebound name sends a foreign Host); in read-only
questions everything but one SELECT, SHOW, DESCRIBE, EXISTS or EXPLAIN, files written by INTO OUTFILE, and every table
function but the few that make rows from nothing, wherever it stands. Judged on the engine's own syntax tree, never on the text.
Not covered: another process of the same user, which can read the token file; how long a question runs.
Called by the store server.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator, Mapping

READ_ROOTS = ("Select", "Show", "Describe", "Exists", "Explain")
HARMLESS_TABLE_FUNCTIONS = frozenset(
    {
        "numbers",
        "numbers_mt",
        "zeros",
        "zeros_mt",
        "values",
        "generaterandom",
        "generateseries",
        "generate_series",
        "null",
        "view",
        "format",
    }
)
# These reach beyond the database as ordinary functions; `file` is a table function too.
REFUSED_FUNCTIONS = frozenset({"file", "catboostevaluate", "sleep", "sleepeachrow", "getclienthttpheader", "showcertificate"})
AUTHENTICATION_FAILED = 516
READONLY = 164

_NODE = re.compile(r"^( *)(\S+)(?: +(\S+))?")


def host_refused(headers: Mapping[str, str], port: int) -> str:
    """Why the request's Host or Origin is refused, or ""."""
    own = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    host = headers.get("host", "")
    if host not in own:
        return f"Host {host!r} is not this store's address"
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{name}" for name in own}:
        return f"Origin {origin!r} may not ask this store"
    return ""


def token_given(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The password that the request carries, as ClickHouse's clients send it."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    if scheme.lower() == "bearer":
        return value
    return headers.get("x-clickhouse-key") or query.get("password", "")


def token_fits(given: str, token: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())


def read_refused(tree: str, table_functions: frozenset[str]) -> str:
    """Why a read-only question with this EXPLAIN AST text is refused, or "". `table_functions`: all there are, in lower case."""
    refused = (table_functions - HARMLESS_TABLE_FUNCTIONS) | REFUSED_FUNCTIONS
    first = tree.split(" ", 1)[0].strip()
    if not first.startswith(READ_ROOTS):
        return f"{first} is not a question (SELECT, SHOW, DESCRIBE, EXISTS, EXPLAIN)"
    for kind, name, parent in _nodes(tree):
        if kind == "Function" and name.lower() in refused:
            return f"the function {name} may not be used in a read-only question"
        if kind == "Function" and parent == "TableExpression" and name.lower() not in HARMLESS_TABLE_FUNCTIONS:
            return f"the table function {name} may not be used in a read-only question"
        if kind == "Literal" and parent == "SelectWithUnionQuery":
            return "INTO OUTFILE may not be used in a read-only question"
    return ""


def _nodes(tree: str) -> Iterator[tuple[str, str, str]]:
    """(node, its first word, its parent's node) for each line of the tree; depth is the indentation."""
    path: list[str] = []
    for line in tree.splitlines():
        match = _NODE.match(line)
        if match is None:
            continue
        depth = len(match[1])
        del path[depth:]
        yield match[2], match[3] or "", path[-1] if path else ""
        path.append(match[2])
