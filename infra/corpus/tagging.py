"""What a document is about: math, science or code, by the words and marks that stand in it.

In: a text. Out: a tag, or "" where none is plain enough. A fixed list and no model, so that the same text has the same tag on
every machine. A hit counts one a hundred words, a word at most THRICE, a mark that only mathematics or programs have counts
more. English words only. Pure; called by `spade corpus add`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Final

from schemas.settings import TAGS, Tag

FOLDER: Final = Path(__file__).parent / "tags"  # the words of each tag
THRICE: Final = 3  # hits of one word that count: a name repeated all over says no more
LEAST_HITS: Final = 2.0
LEAST_SHARE: Final = 1.0  # hits a hundred words

_MARKS: Final[dict[Tag, tuple[tuple[re.Pattern[str], float], ...]]] = {
    "math": (
        (re.compile(r"\d\s*[-+*/=×÷^<>]\s*\d"), 2.0),
        (re.compile(r"\\(?:frac|sum|int|sqrt|cdot|leq|geq|mathbb)\b"), 4.0),
        (re.compile(r"\$[^$\n]{1,200}\$"), 2.0),
    ),
    "science": ((re.compile(r"\b\d+(?:\.\d+)?\s?(?:°C|°F|kg|km/h|m/s|nm|kJ|Hz|mol|kPa)\b"), 2.0),),
    "code": (
        (re.compile(r"^```", re.MULTILINE), 4.0),
        (re.compile(r"^\s*(?:def|class|import|from|fn|func|public|private|static|#include|const|let|var)\s", re.MULTILINE), 3.0),
        (re.compile(r"[;{}]\s*$", re.MULTILINE), 2.0),
        (re.compile(r"\w\(\w*\)|==|!=|->|=>|\+\+"), 1.0),
    ),
}
_WORD: Final = re.compile(r"[a-z]+")
_MOST_MARKS: Final = 10


@functools.cache
def _words(tag: Tag) -> frozenset[str]:
    return frozenset((FOLDER / f"{tag}.txt").read_text(encoding="utf-8").split())


def tag_of(text: str) -> Tag | None:
    """The tag with most hits; None where there are few, or where two tags have equally many."""
    words = _WORD.findall(text.lower())
    counts = Counter(words)
    hits: dict[Tag, float] = {}
    for tag in TAGS:
        marks = sum(min(len(pattern.findall(text)), _MOST_MARKS) * weight for pattern, weight in _MARKS[tag])
        hits[tag] = marks + sum(min(counts[word], THRICE) for word in _words(tag) if word in counts)
    first, second = sorted(hits.values(), reverse=True)[:2]
    if first < LEAST_HITS or first == second or 100 * first < LEAST_SHARE * len(words):
        return None
    return max(hits, key=lambda tag: hits[tag])
