"""Texts that were there already, to the letter or nearly.

In: texts, one after another. Out: whether each is new. Equal: the same letters but for case and white space (SHA-256). Near:
estimated Jaccard similarity of shingles of SHINGLE words and marks, by MinHash of PERMUTATIONS values (standard error .05 at
the threshold), candidates by BANDS of equal values (found with probability .9998 at similarity .8). Differs from the textbook
in that shingles are polynomial hashes of CRC-32 token hashes, so that numpy does the work; equal on every machine. Holds some 3
KB a text. Called by `spade corpus add`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

PERMUTATIONS: Final = 64
BANDS: Final = 16
SHINGLE: Final = 4
NEAR: Final = 0.8
MOST_CANDIDATES: Final = 64  # of one band
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_FACTOR: Final = 0x9E3779B97F4A7C15
_DRAWN: Final = np.frombuffer(hashlib.shake_128(b"spade corpus").digest(16 * PERMUTATIONS), "<u8").astype(np.uint64)
_MULTIPLIERS: Final = _DRAWN[:PERMUTATIONS] | np.uint64(1)
_SUMMANDS: Final = _DRAWN[PERMUTATIONS:]

Signature = npt.NDArray[np.uint32]


class Seen:
    """The texts so far."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()
        self._signatures: list[Signature] = []
        self._bands: dict[bytes, list[int]] = {}

    def add(self, text: str) -> Literal["new", "equal", "near"]:
        """What the text is to those before it; a new one is kept."""
        folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
        digest = hashlib.sha256(folded.encode("utf-8", "surrogatepass")).digest()
        if digest in self._digests:
            return "equal"
        signature = sign(folded)
        keys = [bytes([band]) + part.tobytes() for band, part in enumerate(signature.reshape(BANDS, -1))]
        candidates = {index for key in keys for index in self._bands.get(key, ())}
        if any(similarity(signature, self._signatures[index]) >= NEAR for index in candidates):
            return "near"
        self._digests.add(digest)
        for key in keys:
            held = self._bands.setdefault(key, [])
            if len(held) < MOST_CANDIDATES:
                held.append(len(self._signatures))
        self._signatures.append(signature)
        return "new"


def sign(folded: str) -> Signature:
    """PERMUTATIONS minima over the text's shingles; a text shorter than a shingle is one."""
    hashes = np.fromiter((zlib.crc32(token.encode("utf-8", "surrogatepass")) for token in _TOKEN.findall(folded)), np.uint64)
    count = max(1, len(hashes) - SHINGLE + 1)
    shingles = np.zeros(count, np.uint64)
    for place in range(min(SHINGLE, len(hashes))):
        shingles = shingles * np.uint64(_FACTOR) + hashes[place : place + count] + np.uint64(1)
    shingles ^= shingles >> np.uint64(29)
    least = np.full(PERMUTATIONS, 2**32 - 1, np.uint32)
    for start in range(0, count, 4096):  # 2 MiB at a time
        table = _MULTIPLIERS[:, None] * shingles[None, start : start + 4096] + _SUMMANDS[:, None]
        least = np.minimum(least, (table >> np.uint64(32)).astype(np.uint32).min(axis=1))
    return least


def similarity(a: Signature, b: Signature) -> float:
    """Estimated Jaccard similarity in [0, 1]."""
    return float((a == b).mean())
