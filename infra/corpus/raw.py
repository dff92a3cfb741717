"""What is read of a file before anything is decided about it: a text with its origin, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Why something is not in the corpus, as it is counted.
Reason = Literal[
    "encoding",
    "not JSON",
    "damaged",
    "no text column",
    "no text",
    "too large",
    "too short",
    "duplicate",
    "near duplicate",
    "another kind of file",
    "link",
    "dataset card",
    "beyond the limit",
]
LARGEST_TEXT_BYTES = 16 * 2**20  # of one document, before it is cut
LARGEST_TABLE_BYTES = 8 * 2**30  # of one file of rows, which are read a few at a time


@dataclass(frozen=True)
class Raw:
    """A text as it stood. `origin`: FILE, FILE:LINE or FILE row N, relative to what was named."""

    origin: str
    title: str
    text: str
    skill: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Skip:
    """Something that was passed over: why, where, and what exactly was wrong with it."""

    reason: Reason
    origin: str
    detail: str = ""


def decoded(data: bytes, origin: str) -> str | Skip:
    """UTF-8 text with plain line feeds, or why it is none."""
    if len(data) > LARGEST_TEXT_BYTES:
        return Skip("too large", origin, f"{len(data)} bytes, at most {LARGEST_TEXT_BYTES} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        return Skip("encoding", origin, f"not UTF-8 at byte {problem.start}")
    if "\0" in text:
        return Skip("encoding", origin, "a zero byte: not text")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.strip() else Skip("no text", origin)
