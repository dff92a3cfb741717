"""Hostile text made fit for people: what a model or an environment wrote, shown so that it can't act on who reads it.

In: any str. Out: printable text. Covered: control characters, ANSI sequences, bidirectional overrides, invisible and
unassigned characters, surrogates, line separators, spaces other than the plain one; with `escape_html` markup too. Not
covered: letters that look alike.
"""

from __future__ import annotations

import html
from typing import Final

DEFAULT_LIMIT: Final = 2000


def escape(text: str, limit: int = DEFAULT_LIMIT) -> str:
    """At most `limit` characters of `text`, with everything that is not visible text (but line feeds) as \\x.. or \\u...."""
    shown = "".join(map(_visible, text[:limit]))
    return shown if len(text) <= limit else f"{shown}... ({len(text) - limit} characters more)"


def escape_line(text: str, limit: int = DEFAULT_LIMIT) -> str:
    """As `escape`, on one line."""
    return escape(text, limit).replace("\n", "\\n")


def escape_html(text: str, limit: int = DEFAULT_LIMIT) -> str:
    """As `escape`, then with &, <, > and quotes as entities, for HTML text and attributes."""
    return html.escape(escape(text, limit), quote=True)


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\n" or 0x20 <= code < 0x7F:
        return character
    if character.isprintable():
        return character
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
