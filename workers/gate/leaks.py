"""Leaks: answers that stand in the first observation for copying, or in the hint. Pure text; the gate confirms by playing.

A copier is a fixed function of the first observation. What a copier can't do (count, compute, compare, look up in the
text by a rule) is honest work; a copier that wins shows that there is no work. Not covered: ciphers beyond those listed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Final

NUMBER_WORDS: Final = (  # noqa: SIM905 - a list of words reads better
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
).split()
WORD_POSITIONS: Final = (0, 1, 2, 3, 4, -1, -2, -3)
OFFERED_AT_MOST: Final = 12
_WORD: Final = re.compile(r"[\w.+/=-]+")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_LABELLED: Final = re.compile(r"(?:[:=>]|\bis\b|\bsay\b|\btype\b|\banswer\b)\s*[\"'`(\[]?([\w.+/=-]+)", re.IGNORECASE)
_QUOTED: Final = re.compile(r"[\"'`]([^\"'`]{1,80})[\"'`]")


def wrapper(actions: Sequence[str]) -> tuple[str, str]:
    """What all actions have around their answer, such as `\\boxed{` and `}`: prefix and suffix, without letters of the answer."""
    distinct = sorted(set(actions))
    if len(distinct) < 2:
        return ("\\boxed{", "}") if distinct and distinct[0].startswith("\\boxed{") and distinct[0].endswith("}") else ("", "")
    shortest = min(map(len, distinct))
    front = next((n for n in range(shortest) if len({action[n] for action in distinct}) > 1), shortest)
    prefix = distinct[0][:front].rstrip("0123456789")
    room = shortest - len(prefix)
    back = next((n for n in range(room) if len({action[-1 - n] for action in distinct}) > 1), room)
    suffix = distinct[0][len(distinct[0]) - back :].lstrip("0123456789") if back else ""
    if prefix[-1:].isalnum():
        prefix = re.sub(r"[^\W_]+$", "", prefix)
    if suffix[:1].isalnum():
        suffix = re.sub(r"^[^\W_]+", "", suffix)
    return prefix, suffix


def unwrap(action: str, around: tuple[str, str]) -> str:
    """An action's answer without its wrapper, folded for comparison."""
    prefix, suffix = around
    if action.startswith(prefix) and action.endswith(suffix) and len(action) >= len(prefix) + len(suffix):
        action = action[len(prefix) : len(action) - len(suffix)]
    return fold(action)


def fold(text: str) -> str:
    """Text as compared: no case, no outer space and punctuation, no leading zeros of a number."""
    text = text.strip().strip(".,;:!?\"'`()[]{}").casefold()
    return str(int(text)) if re.fullmatch(r"-?\d{1,40}", text) else text


def copies(observation: str) -> dict[str, str]:
    """What each copier answers to a first observation; copiers that find nothing are left out."""
    found: dict[str, str] = {}
    words = _WORD.findall(observation)
    numbers = _NUMBER.findall(observation)
    labelled = _LABELLED.findall(observation)
    quoted = _QUOTED.findall(observation)
    for position in WORD_POSITIONS:
        for name, values in (("word", words), ("number", numbers)):
            if -len(values) <= position < len(values):
                found[f"{name} {position}"] = values[position].strip(".")
    for name, values in (("labelled", labelled), ("quoted", quoted)):
        if values:
            found[f"first {name}"], found[f"last {name}"] = values[0].strip("."), values[-1].strip(".")
    found["whole"] = observation
    for name, text in list(found.items()):
        for kind, decoded in _decoded(text):
            found[f"{name}, {kind}"] = decoded
    return found


def hint_holds(hint: str, answer: str) -> bool:
    """Whether an answer stands in the hint: as it is, spelled out, with its letters apart, reversed or encoded."""
    answer = fold(answer)
    if not answer:
        return False
    text = hint.casefold()
    return any(_stands_in(form, text) for form in _forms(answer))


def is_offered(answers: Sequence[str], observations: Sequence[str]) -> bool:
    """Whether the answers are a small fixed set that each observation lists (directions, yes and no)."""
    distinct = {fold(answer) for answer in answers}
    return len(distinct) <= OFFERED_AT_MOST and all(
        all(_stands_in(answer, observation.casefold()) for answer in distinct) for observation in observations
    )


def _forms(answer: str) -> Iterator[str]:
    yield answer
    raw = answer.encode("utf-8", "surrogatepass")
    if len(answer) > 1:
        yield answer[::-1]
        yield from (separator.join(answer) for separator in (" ", "-", ", ", "."))
        yield base64.b64encode(raw).decode().rstrip("=").casefold()
        yield raw.hex()
    if _is_number(answer) and len(answer) <= 6:
        yield hex(int(answer))
        yield bin(int(answer))
        if int(answer) < len(NUMBER_WORDS):
            yield NUMBER_WORDS[int(answer)]
        if len(answer) > 1:
            yield " ".join(NUMBER_WORDS[int(digit)] for digit in answer)


def _stands_in(form: str, text: str) -> bool:
    return re.search(rf"(?<![^\W_]){re.escape(form)}(?![^\W_])", text) is not None


def _decoded(text: str) -> Iterator[tuple[str, str]]:
    """Other readings of a copied text."""
    if len(text) > 1:
        yield "reversed", text[::-1]
    if text.casefold() in NUMBER_WORDS:
        yield "as a number", str(NUMBER_WORDS.index(text.casefold()))
    if _is_number(text) and len(text) < 3 and int(text) < len(NUMBER_WORDS):
        yield "as a word", NUMBER_WORDS[int(text)]
    if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", text):
        yield "as hexadecimal", str(int(text, 16))
    if re.fullmatch(r"(0b)?[01]{2,64}", text):
        yield "as binary", str(int(text, 2))
    for kind, decode in (("from base64", _from_base64), ("from hexadecimal", _from_hex)):
        decoded = decode(text)
        if decoded:
            yield kind, decoded


def _from_base64(text: str) -> str:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        return raw.decode() if len(text) >= 2 and raw.decode().isprintable() else ""
    except (binascii.Error, ValueError):
        return ""


def _from_hex(text: str) -> str:
    try:
        decoded = bytes.fromhex(text).decode()
    except ValueError:
        return ""
    return decoded if decoded.isprintable() else ""


def _is_number(text: str) -> bool:
    """Whether text is plain digits: str.isdigit takes superscripts too, which int() refuses."""
    return text.isascii() and text.isdigit()
