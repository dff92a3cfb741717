"""Environment sources compared: names normalised, literals replaced, MinHash over what is left.

In: source text. Out: its skeleton, a signature of PERMUTATIONS integers, and the estimated Jaccard similarity of two
signatures. Who calls: the gate (signature), streams/design and diversity (similarity, skeleton). Pure; no state.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import keyword
import re
import struct
import tokenize
from typing import Final

PERMUTATIONS: Final = 64
SHINGLE: Final = 4
_NUMBERS: Final = struct.Struct(f"<{PERMUTATIONS}I")
_CONTRACT: Final = frozenset({"self", "reset", "step", "solution", "max_turns", "seed", "action"})
_KEPT: Final = _CONTRACT | frozenset(keyword.kwlist) | frozenset(dir(builtins))
_SKIPPED: Final = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})
_ROUGH: Final = re.compile(r"[A-Za-z_]\w*|\d+|\S")


def normalise(source: str) -> str:
    """The source with each name that its author chose as `v`, numbers as `0`, texts as `''`, without comments and spacing.

    Attribute names after a dot stay (`append`, `randrange`: what the code does), unless they hang on `self`. Text that does not
    tokenize is split roughly, so that every input has a skeleton.
    """
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in _SKIPPED]
    except (tokenize.TokenError, SyntaxError):
        return " ".join("v" if word.isidentifier() and word not in _KEPT else word for word in _ROUGH.findall(source))
    words: list[str] = []
    before = ["", ""]
    for token in tokens:
        words.append(_skeleton_word(token, before))
        before = [before[1], token.string]
    return " ".join(words)


def signature(source: str) -> tuple[int, ...]:
    """MinHash of the skeleton's shingles of SHINGLE words: PERMUTATIONS integers below 2**32, equal on every machine.

    Each shingle is hashed once, to as many numbers as there are permutations in the textbook's form (by an extendable hash); the
    signature holds the least of each. The usual library would load scipy for it, 1.4 s of every gate's start.
    """
    words = normalise(source).split(" ")
    shingles = {" ".join(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))}
    digests = [hashlib.shake_128(shingle.encode("utf-8", "surrogatepass")).digest(4 * PERMUTATIONS) for shingle in shingles]
    rows = [_NUMBERS.unpack(digest) for digest in digests]
    return tuple(map(min, zip(*rows, strict=True)))


def similarity(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """Estimated Jaccard similarity in [0, 1]. Raises ValueError for signatures of different length."""
    return sum(left == right for left, right in zip(a, b, strict=True)) / len(a)


def _skeleton_word(token: tokenize.TokenInfo, before: list[str]) -> str:
    if token.type == tokenize.NUMBER:
        return "0"
    if token.type == tokenize.STRING:
        return "''"
    if token.type == tokenize.NAME and token.string not in _KEPT:
        return token.string if before[1] == "." and before[0] != "self" else "v"
    if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE):
        return {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}[token.type]
    return token.string
