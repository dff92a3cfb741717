"""The nano model's dialect: special tokens in place of fences and tags, so that a design is short and can't be misread.

    design:  <design> skill, words, memory lines <code>  source <hint> hint <eos>
    play:    <play> observation [<hint> hint] <say>  [working] <act> action <eos>  <play> next observation <say> ...

The text left of the two wide gaps is the prompt, the rest is written by the model. Text that others wrote (observations, hints,
documents) is encoded with special tokens as plain text, so nothing in it can open a turn. Imports only `tokenizers`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from infra.dialects.base import ParsedDesign, ParsedTurn
from infra.dialects.words import FAMILY_OF_WORD
from schemas.design import DesignSlot, MemoryLine
from schemas.errors import ModelError

SPECIAL_TOKENS = ("<pad>", "<eos>", "<design>", "<play>", "<code>", "<hint>", "<say>", "<act>")
"""In id order, from 0."""
PAD, EOS, DESIGN, PLAY, CODE, HINT, SAY, ACT = range(len(SPECIAL_TOKENS))

MEMORY_KINDS = ("best", "easy", "hard")
MEMORY_LINES = 6
KEYWORDS = 4

_FAMILY = re.compile(r"^class (\w+)Env\b", re.MULTILINE)
_SIZE = re.compile(r"^    size = (\d{1,6})$", re.MULTILINE)


def keywords_of(text: str) -> list[str]:
    """The first `KEYWORDS` different words of a text that point to a family, in their order; plurals count as their singular."""
    found: dict[str, None] = {}
    for word in re.findall(r"[a-z]+", text.lower()):
        for form in (word, word.removesuffix("s"), word.removesuffix("es")):
            if form in FAMILY_OF_WORD:
                found[form] = None
                break
    return list(found)[:KEYWORDS]


def describe_source(source: str) -> tuple[str, int]:
    """Family and size that a source declares; ("other", 0) where it declares neither."""
    family, size = _FAMILY.search(source), _SIZE.search(source)
    if family is None or size is None:
        return "other", 0
    return family.group(1).lower(), int(size.group(1))


class NanoDialect:
    """The dialect over one tokenizer folder. Raises ModelError where the folder holds no tokenizer of this dialect."""

    name = "nano"
    design_stop_ids = frozenset({EOS})
    play_stop_ids = frozenset({EOS})

    def __init__(self, tokenizer_dir: Path) -> None:
        path = tokenizer_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"no tokenizer at {path}", "Give the folder of a nano model, or build one with `spade nano build`")
        tokenizer = Tokenizer.from_file(str(path))
        for token_id, token in enumerate(SPECIAL_TOKENS):
            if tokenizer.token_to_id(token) != token_id:
                raise ModelError(f"{path} has no token {token} at id {token_id}", "Choose the dialect of this model")
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Text as token ids; special tokens in it stay plain text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Exactly the text of the ids, special tokens spelled out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def design_prompt(self, slot: DesignSlot) -> list[int]:
        """See `Dialect`: the skill, up to four words of the document, up to six memory lines of family and size."""
        words = keywords_of(f"{slot.document.title} {slot.document.text}")
        return self.write_design_prompt(slot.skill, words, memory_labels(slot.memory))

    def write_design_prompt(self, skill: str, words: Iterable[str], memory: Iterable[tuple[str, str, int]]) -> list[int]:
        """The same from its parts; memory lines are (kind, family, size). Used by the warm start."""
        lines = [skill, " ".join(words), *(f"{kind} {family} {size}" for kind, family, size in memory)]
        return [DESIGN, *self.encode("\n".join(lines)), CODE]

    def parse_design(self, token_ids: Sequence[int]) -> ParsedDesign:
        """See `Dialect`: source, one hint token, hint, end."""
        ids = list(token_ids)
        if not ids or ids[-1] != EOS:
            return ParsedDesign("", "", "the design does not end")
        body = ids[:-1]
        if body.count(HINT) != 1:
            return ParsedDesign("", "", f"{body.count(HINT)} hint marks where one is due")
        if any(token < len(SPECIAL_TOKENS) and token != HINT for token in body):
            return ParsedDesign("", "", "a mark in a place where text is due")
        at = body.index(HINT)
        source, hint = self.decode(body[:at]), self.decode(body[at + 1 :])
        if "\ufffd" in source or "\ufffd" in hint:
            return ParsedDesign(source, hint, "the tokens are not UTF-8 text")
        if not source.strip() or not hint.strip():
            return ParsedDesign(source, hint, "an empty source or hint")
        return ParsedDesign(source, hint)

    def open_play(self, observation: str, hint: str | None) -> list[int]:
        """See `Dialect`."""
        noted = [] if hint is None else [HINT, *self.encode(hint)]
        return [PLAY, *self.encode(observation), *noted, SAY]

    def continue_play(self, observation: str, last: int | None = None) -> list[int]:
        """See `Dialect`."""
        return [PLAY, *self.encode(observation), SAY]

    def write_design(self, source: str, hint: str) -> list[int]:
        """The completion that `parse_design` reads back. Used by the warm start."""
        return [*self.encode(source), HINT, *self.encode(hint), EOS]

    def write_turn(self, working: str, action: str) -> list[int]:
        """The agent's turn that `parse_action` reads back; no working where it is empty. Used by the warm start."""
        return [*self.encode(working), ACT, *self.encode(action), EOS]

    def read_turn(self, token_ids: Sequence[int]) -> ParsedTurn:
        """See `Dialect`."""
        return ParsedTurn(self.parse_action(token_ids), "" if ACT in token_ids else "no action")

    def parse_action(self, token_ids: Sequence[int]) -> str:
        """See `Dialect`: what follows the last act token, up to the end of the turn."""
        ids = list(token_ids)
        if ACT not in ids:
            return ""
        action = ids[len(ids) - ids[::-1].index(ACT) :]
        if EOS in action:
            action = action[: action.index(EOS)]
        return self.decode(action)

    def describe(self, source: str) -> tuple[str, int]:
        """See `Dialect`."""
        return describe_source(source)


def memory_labels(memory: Iterable[MemoryLine]) -> list[tuple[str, str, int]]:
    """Memory lines as (kind, family, size), at most six; other kinds and sources that declare no family are left out."""
    labels = [(line.kind, *describe_source(line.source)) for line in memory if line.kind in MEMORY_KINDS]
    return [label for label in labels if label[1] != "other"][:MEMORY_LINES]
