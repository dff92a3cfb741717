"""What a read-only question may be: judged on the engine's own syntax tree, never on the text.

Covered: everything but one SELECT, SHOW of tables and their columns, DESCRIBE, EXISTS or EXPLAIN; files written by INTO
OUTFILE; every table function but the few that make rows from nothing, wherever it stands; ordinary functions that reach files,
the network or another process; SETTINGS; system tables but those that tell which tables and columns there are (others hold
other people's questions, settings, addresses and credentials); names that could forge lines of the tree.
Not covered: what a server's own grants let its user read of other databases; how long a question runs (infra/question.py).
Called by the embedded store's server for every read-only request, and by `spade memory --sql` before it asks any store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

READ_ROOTS = ("Select", "Describe", "Exists", "Explain", "ShowTables", "ShowColumns", "ShowCreateTable", "ShowCreateView")
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
REFUSED_FUNCTIONS = frozenset(
    {
        *("file", "catboostevaluate", "sleep", "sleepeachrow", "getclienthttpheader", "showcertificate", "reversednsquery"),
        *("getserversetting", "getmacro", "addresstoline", "addresstolinewithinlines", "addresstosymbol", "demangle"),
    }
)
REFUSED_PREFIXES = ("dict", "joinget", "ai")  # dictionaries and joins have sources; ai* call a model over the network
SYSTEM_DATABASES = frozenset({"system", "information_schema"})
SYSTEM_TABLES = frozenset({"one", "numbers", "zeros", "databases", "tables", "columns", "functions", "table_functions"})

_NODE = re.compile(r"^( *)(\S+)(?: +(\S+))?")
_SHOW_NAMES = re.compile(r"SHOW (FULL )?(TABLES|DATABASES)\b")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.|'')*'|--[^\n]*|/\*.*?\*/|(`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*")""", re.DOTALL)
_UNSEEN = re.compile(r"[\x00-\x1f\x7f\\]")


def text_refused(text: str) -> str:
    """Why the question's names are refused, or "": one with a line break in it could pass for lines of the syntax tree."""
    for match in _QUOTED.finditer(text):
        if match[1] and _UNSEEN.search(match[1]):
            return "a name with a backslash or a control character may not be used in a read-only question"
    return ""


def read_refused(tree: str, table_functions: frozenset[str], database: str = "", canonical: str = "") -> str:
    """Why a read-only question with this EXPLAIN AST text is refused, or "".

    `table_functions`: all there are, in lower case. `database`: where names without one are looked up. `canonical`: the question
    as formatQuery writes it, which tells the kinds of SHOW apart that share a node.
    """
    refused = (table_functions - HARMLESS_TABLE_FUNCTIONS) | REFUSED_FUNCTIONS
    first = tree.split(" ", 1)[0].strip()
    if not first.startswith(READ_ROOTS):
        return f"{first} is not a question (SELECT, SHOW TABLES, DESCRIBE, EXISTS, EXPLAIN)"
    if first.startswith("ShowTables") and not _SHOW_NAMES.match(canonical):
        return "of SHOW, only TABLES and DATABASES may be asked in a read-only question"
    if database.lower() in SYSTEM_DATABASES:
        return f"the database {database} may not be asked in a read-only question"
    for kind, name, parent in _nodes(tree):
        lowered = name.lower()
        if kind == "Function" and (lowered in refused or lowered.startswith(REFUSED_PREFIXES)):
            return f"the function {name} may not be used in a read-only question"
        if kind == "Function" and parent == "TableExpression" and lowered not in HARMLESS_TABLE_FUNCTIONS:
            return f"the table function {name} may not be used in a read-only question"
        if kind == "Set":
            return "SETTINGS may not be used in a read-only question"
        if kind == "Literal" and parent == "SelectWithUnionQuery":
            return "INTO OUTFILE may not be used in a read-only question"
        if kind in ("Identifier", "TableIdentifier") and _system_refused(lowered):
            return f"the table {name} may not be read in a read-only question (of system: {', '.join(sorted(SYSTEM_TABLES))})"
    return ""


def _system_refused(name: str) -> bool:
    """Whether a dotted name leads to a system table that is not among the harmless ones."""
    parts = name.replace("`", "").replace('"', "").split(".")
    return len(parts) > 1 and parts[0] in SYSTEM_DATABASES and (parts[0] != "system" or parts[1] not in SYSTEM_TABLES)


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
