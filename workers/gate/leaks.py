"""Leaks: answers that stand in an observation for copying, or in the hint, and texts to try blindly. Pure text; the gate
confirms by playing.

A copier is a fixed function of one observation. What a copier can't do (count, compute, compare, look up in the
text by a rule) is honest work; a copier that wins shows that there is no work. Not covered: ciphers beyond those listed.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from workers.gate.tree import nodes, parsed

NUMBER_WORDS: Final = (  # noqa: SIM905 - a list of words reads better
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
).split()
TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905 - as above
ROMAN: Final = ((100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))
# copiers that are tried even where they don't give the witness's answer
TRIED: Final = ("word -1", "number 0", "number -1", "first labelled", "last labelled", "first quoted", "last quoted")
SOURCE_TEXTS: Final = 10
LONGEST_TEXT: Final = 60
HINT_WORDS: Final = 4
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
    """Whether an answer stands in the hint: as it is, spelled out, with its letters apart, reversed, encoded, or as a sum."""
    answer = fold(answer)
    if not answer:
        return False
    text = _plain(hint)
    if _is_number(answer) and any(str(total) == answer for total in _sums(text)):
        return True
    return any(_stands_in(form, text) for form in _forms(answer))


def secret_words(hint: str, plays: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, int]:
    """Words that the hint holds, in any form, and no observation: in how many plays the witness has to say each.

    `plays`: the witness's actions and what it was shown before the last of them.
    """
    counts: Counter[str] = Counter()
    for actions, shown in plays:
        told = _plain(" ".join(shown))
        said = dict.fromkeys(word for action in actions for word in re.findall(r"[^\W_]+", action.casefold()))
        counts.update(word for word in said if len(word) > 1 and not word.isdigit() and word not in told)
    return {word: count for word, count in counts.items() if hint_holds(hint, word)}


def source_texts(source: str, hint: str) -> list[str]:
    """Texts and larger numbers that the source compares or shows, those that the hint holds first; at most SOURCE_TEXTS."""
    tree = parsed(source)
    outside = {id(part) for node in nodes(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    outside |= {id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr)}
    found = [
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in outside
    ]
    numbers = [node.value for node in nodes(tree) if isinstance(node, ast.Constant) and type(node.value) is int]
    found += [str(number) for number in numbers if 99 < number < 10**LONGEST_TEXT]  # Python shows no number of any length
    known = dict.fromkeys(text for text in found if text.strip() and len(text) <= LONGEST_TEXT)
    held = _plain(hint)
    return sorted(known, key=lambda text: (_plain(text) not in held, -len(text)))[:SOURCE_TEXTS]


def shared_texts(source: str, hint: str) -> list[str]:
    """Texts that both hold, not the shortest; at most HINT_WORDS."""
    held = _plain(hint)
    return [text for text in source_texts(source, hint) if len(text) > 2 and _plain(text) in held][:HINT_WORDS]


def hint_texts(hint: str, source: str) -> list[str]:
    """What a hint may tell to say: the whole, what stands in quotes, words that the source holds, and a few more."""
    if not hint.strip():
        return []
    quoted = [text for text in _QUOTED.findall(hint) if text.strip()]
    words = list(dict.fromkeys(word.strip(".,;:!?()") for word in hint.split()))
    words = [word for word in words if len(word) > 1]
    code = set(re.findall(r"[^\W_]+", source.casefold()))
    known = [word for word in words if word.casefold() in code or word.casefold()[::-1] in code]
    odd = sorted(words, key=lambda word: (not any(map(str.isdigit, word)), word.islower(), -len(word)))
    chosen = [hint, *quoted[:HINT_WORDS], *known[:HINT_WORDS], *odd[:HINT_WORDS]]
    return list(dict.fromkeys([*chosen, *[text[::-1] for text in quoted[:HINT_WORDS]]]))


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
        yield base64.b32encode(raw).decode().rstrip("=").casefold()
        yield raw.hex()
        if not answer.isdigit():
            yield codecs.encode(answer, "rot13")
    if _is_number(answer) and len(answer) <= 6:
        yield hex(int(answer))
        yield bin(int(answer))
        if int(answer) < 10_000:
            spelled = _in_words(int(answer))
            yield from dict.fromkeys(
                (spelled, spelled.replace("-", " "), spelled.replace(" and ", " "), spelled.replace("-", ""))
            )
        if 10 < int(answer) < 400:
            yield _in_roman(int(answer))
        if len(answer) > 1:
            yield " ".join(NUMBER_WORDS[int(digit)] for digit in answer)


def _in_words(number: int) -> str:
    """A number below 10,000 in English: one hundred and forty-seven."""
    if number < len(NUMBER_WORDS):
        return NUMBER_WORDS[number]
    if number < 100:
        tens = TENS[number // 10 - 2]
        return tens if number % 10 == 0 else f"{tens}-{NUMBER_WORDS[number % 10]}"
    base, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head = f"{_in_words(number // base)} {name}"
    rest = number % base
    return head if not rest else f"{head}{' and ' if rest < 100 else ' '}{_in_words(rest)}"


def _in_roman(number: int) -> str:
    text = ""
    for value, sign in ROMAN:
        text += sign * (number // value)
        number %= value
    return text


def _sums(text: str) -> Iterator[int]:
    """What the little sums in a text come to."""
    for left, sign, right in re.findall(r"(\d{1,6}) ?([-+*x×]|plus|minus|times) ?(\d{1,6})", text):
        a, b = int(left), int(right)
        yield a + b if sign in ("+", "plus") else a - b if sign in ("-", "minus") else a * b


def _plain(text: str) -> str:
    """Text as searched: no case, no look-alike forms of letters and digits, no invisible signs."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(sign for sign in folded if sign.isprintable() or sign.isspace())


def _stands_in(form: str, text: str) -> bool:
    """Whether a form stands in a text as a word of its own, or as a number of its own. Searched by hand: each form is another
    one, and to compile its pattern would cost more than all the rest."""
    goes_on = str.isdecimal if _is_number(form) else str.isalnum
    start = text.find(form)
    while start >= 0:
        end = start + len(form)
        if not (start and goes_on(text[start - 1])) and not (end < len(text) and goes_on(text[end])):
            return True
        start = text.find(form, start + 1)
    return False


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
