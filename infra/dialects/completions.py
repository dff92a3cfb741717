"""Reads what a chat model wrote: thinking, then a fenced source and a hint, or a turn. Pure text; nothing here raises.

A design is optional thinking, then exactly one python fence, then exactly one `<hint>...</hint>`; anything else is an error that
says what is wrong. Thinking counts at the beginning only, so a source may hold the tags as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from infra.dialects.base import ParsedDesign

THINK: Final = "<think>"
THOUGHT: Final = "</think>"
UNCLOSED_THINKING: Final = "a thinking block is never closed"
HINT_WORDS: Final = 100
_FENCE: Final = re.compile(r"^```[ \t]*(\w*)[ \t]*$", re.MULTILINE)
_HINT: Final = re.compile(r"<hint>(.*?)</hint>", re.DOTALL)


@dataclass(frozen=True)
class Visible:
    """A completion without its thinking. `fault`: "" or that the thinking never ends."""

    text: str
    fault: str = ""


def without_thinking(text: str, opened: bool = False) -> Visible:
    """What follows the thinking block at the beginning. `opened`: the prompt has opened the block already."""
    if not opened and not text.lstrip().startswith(THINK):
        return Visible(text)
    _, closed, rest = text.partition(THOUGHT)
    return Visible(rest) if closed else Visible("", UNCLOSED_THINKING)


def read_design(text: str, *, hint_apart: bool = False) -> ParsedDesign:
    """The design in a completion's visible text. `hint_apart`: the hint comes from a second call, none is due here."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return ParsedDesign("", "", "no python fence")
    opening = fences[0]
    if opening.group(1) != "python":
        return ParsedDesign("", "", f"the first fence is no python fence but {opening.group()[:40]!r}")
    if text[: opening.start()].strip():
        return ParsedDesign("", "", "text before the python fence")
    closing = next((fence for fence in fences[1:] if not fence.group(1)), None)
    if closing is None:
        return ParsedDesign("", "", "the python fence is never closed")
    source, rest = text[opening.end() + 1 : closing.start()], text[closing.end() :]
    if len(fences) > 2:
        return ParsedDesign(source, "", "more than one fence")
    if hint_apart:
        return ParsedDesign(source, "", "text after the fence" if rest.strip() else "" if source.strip() else "an empty source")
    hint, error = _read_hint(rest)
    if not error and not source.strip():
        error = "an empty source"
    return ParsedDesign(source, hint, error)


def read_hint(text: str) -> str:
    """The hint of a completion that holds nothing else; empty where it can't be read."""
    hint, error = _read_hint(text)
    return "" if error else hint


def _read_hint(text: str) -> tuple[str, str]:
    found = list(_HINT.finditer(text))
    if not found:
        return "", "the hint is never closed" if "<hint>" in text else "no hint"
    if len(found) > 1 or text.count("<hint>") > 1 or text.count("</hint>") > 1:
        return "", "more than one hint"
    if text[: found[0].start()].strip() or text[found[0].end() :].strip():
        return "", "text beside the fence and the hint"
    hint = found[0].group(1).strip()
    words = len(hint.split())
    if words >= HINT_WORDS:
        return "", f"a hint of {words} words, fewer than {HINT_WORDS} are due"
    return hint, "" if hint else "an empty hint"
