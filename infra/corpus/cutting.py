"""A text cut into pieces of a length, at the ends of its paragraphs.

In: text, most words a piece. Out: pieces in order, none longer, nothing lost but the white space between them. A paragraph that
is too long is cut at sentence ends, a sentence that is too long between words. A fenced block of code is one paragraph. Pure;
called by `spade corpus add`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

FENCE: Final = "```"
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")


def cut_text(text: str, most_words: int) -> list[str]:
    """Pieces of at most `most_words` words; [] for a text without words."""
    pieces: list[str] = []
    held: list[str] = []
    words = 0
    for part in _parts(text, most_words):
        count = len(part.split())
        if held and words + count > most_words:
            pieces.append("\n\n".join(held))
            held, words = [], 0
        held.append(part)
        words += count
    return [*pieces, "\n\n".join(held)] if held else pieces


def _parts(text: str, most_words: int) -> Iterator[str]:
    """Paragraphs, and the pieces of those that are too long."""
    for paragraph in _paragraphs(text):
        if len(paragraph.split()) <= most_words:
            yield paragraph
        else:
            yield from _filled(_SENTENCE.split(paragraph), most_words)


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith(FENCE)
        if line.strip() or fenced:
            lines.append(line.rstrip())
        elif lines:
            yield "\n".join(lines).strip("\n")
            lines = []
    if any(map(str.strip, lines)):
        yield "\n".join(lines).strip("\n")


def _filled(sentences: list[str], most_words: int) -> Iterator[str]:
    held: list[str] = []
    for sentence in sentences:
        words = sentence.split()
        if len(held) + len(words) > most_words and held:
            yield " ".join(held)
            held = []
        for start in range(0, len(words), most_words):
            held += words[start : start + most_words]
            if len(held) >= most_words:
                yield " ".join(held[:most_words])
                held = held[most_words:]
    if held:
        yield " ".join(held)
