"""A model's own chat template as pieces of token ids: what opens a conversation, and what stands between a turn and the next.

In: a Hugging Face folder (tokenizer.json, tokenizer_config.json, chat_template.jinja where there is one). Out: ids. The template
is rendered over marker texts once, when it is loaded, and cut at them, so the model's turns are never rendered: what was sampled
stays as it was sampled, thinking included, and a template's rewriting of history (Qwen3 strips thinking, others trim) can't make
the trained ids differ from the sampled ones. Text that others wrote is encoded apart and can't hold a mark of the template. A
template's clock shows one fixed day: time decides nothing. Imports tokenizers and jinja2. Raises ModelError for a folder that
can't be used.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from infra.actions import ANSWER, CALL
from schemas.errors import ModelError

DAY: Final = datetime.datetime(2025, 1, 1)
SYSTEM, FIRST, TURN, SECOND = "SPADESYSTEMTEXT", "SPADEFIRSTTEXT", "SPADETURNTEXT", "SPADESECONDTEXT"
# Texts of the settings themselves: where a tokenizer has special tokens for them, they are text like any other.
TAGS: Final = frozenset({*CALL, *ANSWER, "<hint>", "</hint>"})
FIX: Final = "Take an instruction model whose folder holds its chat template, or set model.dialect to nano for the nano model"


class ChatTemplate:
    """The pieces of one folder's template. `thinking` is given to it as enable_thinking."""

    def __init__(self, folder: Path, thinking: bool = True) -> None:
        self._folder = folder
        self._tokenizer = _load_tokenizer(folder)
        config = _read_json(folder / "tokenizer_config.json")
        render = partial(self._render, _template_text(folder, config), config, thinking)
        self._system_apart = True
        try:
            opening = render([_message("system", SYSTEM), _message("user", FIRST)])
        except ModelError:  # some templates refuse a system message: it then stands before the first observation
            self._system_apart = False
            opening = render([_message("user", FIRST)])
        longer = render([_message("user", FIRST), _message("assistant", TURN), _message("user", SECOND)])
        self._no_system = _cut(render([_message("user", FIRST)]), folder, FIRST)
        self._opening = _cut(opening, folder, *([SYSTEM, FIRST] if self._system_apart else [FIRST]))
        between, self._request = _cut(longer, folder, TURN, SECOND)[1:]
        self._marks = self._find_marks([*self._opening, *self._no_system, between, self._request])
        self.stop_ids, self._after_stop = self._find_stops(between, config)
        self._between = between
        self.opens_thinking = bool(re.search(r"<think>\s*\Z", self._request))

    def open(self, user: str, system: str = "") -> list[int]:
        """A conversation's first prompt, up to where the model speaks."""
        if not system:
            head, tail = self._no_system
            return [*self._encode(head), *self.encode_text(user), *self._encode(tail)]
        if not self._system_apart:
            head, tail = self._opening
            return [*self._encode(head), *self.encode_text(f"{system}\n\n{user}"), *self._encode(tail)]
        head, middle, tail = self._opening
        written = [*self._encode(head), *self.encode_text(system), *self._encode(middle)]
        return [*written, *self.encode_text(user), *self._encode(tail)]

    def follow(self, user: str, last: int | None) -> list[int]:
        """What stands between the model's turn and its next. `last`: the turn's last token; a turn cut short is ended here."""
        before = self._after_stop.get(last) if last is not None else None
        if before is None:
            before = self._encode(self._between)
        return [*before, *self.encode_text(user), *self._encode(self._request)]

    def encode_text(self, text: str) -> list[int]:
        """Text that others wrote, as ids: no mark of the template and no special token, whatever it holds."""
        ids: list[int] = []
        for piece in _broken(text, self._marks):
            written = self._encode(piece)
            if any(
                token in self._special for token in written
            ):  # a special token that other letters are made into, or an unknown
                written = [token for letter in piece for token in self._encode(letter)]
            ids += written
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Exactly the text of the ids, special tokens spelled out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def is_special(self, token_id: int) -> bool:
        """Whether an id is one of the tokenizer's special tokens."""
        return token_id in self._special

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids) if text else []

    def _render(self, template: str, config: dict[str, Any], thinking: bool, messages: list[dict[str, str]]) -> str:
        tokens = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        try:
            return (
                _environment()
                .from_string(template)
                .render(messages=messages, add_generation_prompt=True, enable_thinking=thinking, tools=None, **tokens)
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as problem:
            raise ModelError(f"the chat template of {self._folder} can't be rendered ({problem})", FIX) from problem

    def _find_marks(self, pieces: Sequence[str]) -> re.Pattern[str] | None:
        """Texts that no foreign text may become: special tokens, and every added token that the template itself uses."""
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._special = frozenset(number for number, token in added.items() if token.special and token.content not in TAGS)
        used = {
            token.content
            for number, token in added.items()
            if number in self._special or any(token.content in piece for piece in pieces)
        }
        longest = sorted((re.escape(mark) for mark in used if len(mark) > 1), key=len, reverse=True)
        return re.compile("|".join(longest)) if longest else None

    def _find_stops(self, between: str, config: dict[str, Any]) -> tuple[frozenset[int], dict[int, list[int]]]:
        """Ids that end a turn, and for the template's own one what still follows it."""
        named = [_token_text(config.get("eos_token"))]
        stops = {self._tokenizer.token_to_id(token) for token in named if token}
        for name in ("generation_config.json", "config.json"):
            ends = _read_json(self._folder / name).get("eos_token_id")
            stops |= set(ends) if isinstance(ends, list) else {ends}
        found = self._encode(between)
        first = next((place for place, token in enumerate(found) if token in self._added or token in stops), None)
        after: dict[int, list[int]] = {}
        if first is not None and not self.decode(found[:first]).strip():
            stops.add(found[first])
            after[found[first]] = found[first + 1 :]
        known = frozenset(token for token in stops if isinstance(token, int))
        if not known:
            raise ModelError(f"nothing tells which token ends a turn of the model in {self._folder}", FIX)
        return known, after


class _Generation(Extension):
    """The block by which some templates mark the model's own text; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it, and nothing that they could act with."""

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = DAY.strftime
    return environment


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _cut(text: str, folder: Path, *markers: str) -> list[str]:
    """The text around the markers, in their order."""
    pieces = []
    for marker in markers:
        piece, found, text = text.partition(marker)
        if not found or marker in text:
            raise ModelError(f"the chat template of {folder} does not show each message once and in order", FIX)
        pieces.append(piece)
    return [*pieces, text]


def _broken(text: str, marks: re.Pattern[str] | None) -> Iterator[str]:
    """The text in pieces that hold no mark: cut behind the first letter of each."""
    start = 0
    while marks and (found := marks.search(text, start)):
        yield text[start : found.start() + 1]
        start = found.start() + 1
    yield text[start:]


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"no tokenizer at {path}", FIX)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as problem:  # the boundary to tokenizers, which raises Exception itself
        raise ModelError(f"{path} can't be read ({problem})", "Take the tokenizer.json that came with the model") from problem


def _template_text(folder: Path, config: dict[str, Any]) -> str:
    """The template: a file of its own, or in tokenizer_config.json, where it may be a list by name."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ModelError(f"the model in {folder} has no chat template", FIX)
    return template


def _token_text(token: Any) -> str:
    """A special token as it stands in tokenizer_config.json: text, or a table with it."""
    text = token.get("content", "") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ModelError(f"{path} is not JSON ({problem})", "Take the file that came with the model") from problem
    return found if isinstance(found, dict) else {}
