"""The canonical form of a task instance: what is left of its first observation once its wording is taken off.

In: the text that an environment shows first. Out: its digits, signs and capitals, in their order, and short digests of them, so
that instances of a suite can be held against everything that a run played. Called by evaluations, the ablations and the warm
start's census. Pure. Cautious: instances that differ in their wording alone count as one, also where a word names the operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from infra.durable import write_whole
from schemas.errors import SettingsError

WORD = re.compile(r"[A-Za-z]*[a-z][A-Za-z]+|\b[a-z]\b")
DIGEST_DIGITS = 12


def canonical(observation: str) -> str:
    """The data of an observation: words are dropped, runs of white space and of a sentence's punctuation fold to one space."""
    return " ".join(re.sub(r"[\s.,:;!?'\"]+", " ", WORD.sub(" ", observation)).split())


def digest(observation: str) -> str:
    """Twelve hexadecimal digits of the canonical form's SHA-256; "" where nothing but words was shown."""
    data = canonical(observation)
    return sha256(data.encode()).hexdigest()[:DIGEST_DIGITS] if data else ""


def digests(observations: Iterable[str]) -> list[str]:
    """The digest of each."""
    return [digest(one) for one in observations]


def write_digests(path: Path, found: Iterable[str]) -> None:
    """Writes digests as a JSON list, whole or not at all. Raises OSError."""
    write_whole(path, msgspec.json.encode(list(found)))


def read_digests(path: Path) -> list[str]:
    """Inverse of `write_digests`. Raises SettingsError naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError) as problem:
        raise SettingsError(f"{path} holds no digests ({problem})", "Remove it: it is made again") from problem
