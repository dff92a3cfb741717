"""The dialects of chat models, `games` and `tools`: the model's own chat template round the prompts of its setting.

    design:  [user: skill, contract, example, document, memory lines]  thinking, ```python source ```, <hint> hint </hint> END
    play:    [system: how to act] [user: observation, hint]  thinking, action END  [user: next observation]  thinking ...

Between brackets stands the prompt, the rest is written by the model and kept token by token, thinking included: the model reads
its earlier thoughts as it wrote them, and what was sampled is what is trained. Imports no torch and no transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from infra.actions import Action, action_form, read_action, with_hint
from infra.dialects.base import ParsedDesign, ParsedTurn
from infra.dialects.completions import read_design, read_hint, without_thinking
from infra.dialects.prompts import about_skill, fill_prompt, read_prompt
from infra.dialects.template import ChatTemplate
from infra.examples import worked_example
from schemas.design import DesignSlot, MemoryLine

MEMORY_PROMPTS: Final = {"best": "memory-seed", "easy": "memory-easy", "hard": "memory-hard", "repeated": "memory-repeated"}
MEMORY_LINES: Final = 6
CUT: Final = "\n[cut]"
LEAST_DOCUMENT: Final = 64  # tokens; a document that has less room is left out
DESIGN_PROMPT_TOKENS: Final = 16_384


class ChatDialect:
    """One setting over one model's folder. Raises ModelError where the folder can't be spoken to.

    `thinking`: whether the template is told to let the model think. `hint_apart`: the hint comes from a second call, the
    completion of a design holds none. `prompt_tokens`: most tokens of a design's prompt; memory lines and document are cut to it.
    """

    def __init__(
        self,
        setting: str,
        folder: Path,
        *,
        thinking: bool = True,
        hint_apart: bool = False,
        prompt_tokens: int = DESIGN_PROMPT_TOKENS,
    ) -> None:
        self.name = setting
        self._form = action_form(setting)
        self._template = ChatTemplate(folder, thinking)
        self._hint_apart = hint_apart
        self._prompt_tokens = prompt_tokens
        self.design_stop_ids = self.play_stop_ids = self._template.stop_ids

    def design_prompt(self, slot: DesignSlot) -> list[int]:
        """See `Dialect`."""
        return self._template.open(self.design_text(slot))

    def design_text(self, slot: DesignSlot) -> str:
        """The prompt of one slot as the text of one message, whoever's template it then goes through.

        What doesn't fit goes in this order: the document's end, the later memory lines, the document.
        """
        lines = [text for line in slot.memory[:MEMORY_LINES] if (text := _memory_text(line))]
        document = f"{slot.document.title}\n\n{slot.document.text}".strip()
        while True:
            room = self._prompt_tokens - len(self._template.open(self._design_text(slot.skill, "", lines)))
            if room >= LEAST_DOCUMENT or not lines:
                break
            lines.pop()
        return self._design_text(slot.skill, self._shorten(document, room), lines)

    def read_design_text(self, text: str, *, ended: bool) -> ParsedDesign:
        """The design in what another model wrote. `ended`: the model came to its end; else the design is cut."""
        visible = without_thinking(text)
        parsed = (
            read_design(visible.text, hint_apart=self._hint_apart) if not visible.fault else ParsedDesign("", "", visible.fault)
        )
        if not parsed.error and "\ufffd" in parsed.source + parsed.hint:
            parsed = ParsedDesign(parsed.source, parsed.hint, "the text is not whole Unicode")
        if ended:
            return parsed
        told = f"{parsed.error}: " if parsed.error else ""
        return ParsedDesign(parsed.source, parsed.hint, f"{told}the design is cut at its limit")

    def parse_design(self, token_ids: Sequence[int]) -> ParsedDesign:
        """See `Dialect`."""
        body, ended = self._body(token_ids)
        visible = without_thinking(self._template.decode(body), self._template.opens_thinking)
        parsed = ParsedDesign("", "", visible.fault)
        if not visible.fault:
            parsed = read_design(visible.text, hint_apart=self._hint_apart)
        if not ended:
            told = f"{parsed.error}: " if parsed.error else ""
            return ParsedDesign(parsed.source, parsed.hint, f"{told}the design is cut after {len(body)} tokens")
        if parsed.error:
            return parsed
        if any(map(self._template.is_special, body)) and not self._only_in_thinking(body, visible.text):
            return ParsedDesign(parsed.source, parsed.hint, "a special token in a place where text is due")
        if "\ufffd" in parsed.source or "\ufffd" in parsed.hint:
            return ParsedDesign(parsed.source, parsed.hint, "the tokens are not UTF-8 text")
        return parsed

    def hint_prompt(self, source: str) -> list[int]:
        """See `workers.design.HintDialect`."""
        return self._template.open(self.hint_text(source))

    def hint_text(self, source: str) -> str:
        """The prompt of the hint for a source, as the text of one message."""
        return fill_prompt("hint", self.name, source=source, hint_rule=read_prompt("hint-rule", self.name))

    def read_hint_text(self, text: str) -> str:
        """The hint in what another model wrote; empty where there is none."""
        visible = without_thinking(text)
        return "" if visible.fault else read_hint(visible.text)

    def parse_hint(self, token_ids: Sequence[int]) -> str:
        """See `workers.design.HintDialect`."""
        body, ended = self._body(token_ids)
        visible = without_thinking(self._template.decode(body), self._template.opens_thinking)
        return read_hint(visible.text) if ended and not visible.fault else ""

    def open_play(self, observation: str, hint: str | None) -> list[int]:
        """See `Dialect`."""
        return self._template.open(with_hint(observation, hint), read_prompt("play", self.name))

    def continue_play(self, observation: str, last: int | None = None) -> list[int]:
        """See `Dialect`."""
        return self._template.follow(observation, last)

    def read_turn(self, token_ids: Sequence[int]) -> ParsedTurn:
        """See `Dialect`: thinking that never ends hides the rest, so the action is empty."""
        body, _ = self._body(token_ids)
        visible = without_thinking(self._template.decode(body), self._template.opens_thinking)
        action = read_action(self._form, visible.text) if not visible.fault else Action("", visible.fault)
        return ParsedTurn(action.text, action.fault)

    def parse_action(self, token_ids: Sequence[int]) -> str:
        """See `Dialect`."""
        return self.read_turn(token_ids).action

    def describe(self, source: str) -> tuple[str, int]:
        """See `Dialect`: no families here."""
        return "other", 0

    def _body(self, token_ids: Sequence[int]) -> tuple[list[int], bool]:
        """A completion without the token that ended it; whether one did."""
        ids = list(token_ids)
        ended = bool(ids) and ids[-1] in self._template.stop_ids
        return (ids[:-1] if ended else ids), ended

    def _only_in_thinking(self, body: list[int], visible: str) -> bool:
        """Whether the visible text is what its ids give without special tokens."""
        shown = [token for token in body if not self._template.is_special(token)]
        return self._template.decode(shown).endswith(visible)

    def _design_text(self, skill: str, document: str, lines: Sequence[str]) -> str:
        rule = read_prompt("hint-rule", self.name)
        return fill_prompt(
            "design",
            self.name,
            skill=skill,
            about=about_skill(self.name, skill),
            contract=read_prompt("contract"),
            example=worked_example(self.name, skill).source.strip(),
            document=document or "(none this time)",
            memory="\n\n".join(lines),
            ending=read_prompt("ending-apart") if self._hint_apart else fill_prompt("ending", hint_rule=rule),
        )

    def _shorten(self, text: str, room: int) -> str:
        """As much of a text's beginning as `room` tokens hold."""
        if room < LEAST_DOCUMENT:
            return ""
        if len(self._template.encode_text(text)) <= room:
            return text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            fits = len(self._template.encode_text(text[:middle] + CUT)) <= room - 2  # two for joints with the text around
            low, high = (middle, high) if fits else (low, middle - 1)
        return text[:low] + CUT


def _memory_text(line: MemoryLine) -> str:
    """A memory line in words; empty for a kind that has none."""
    name = MEMORY_PROMPTS.get(line.kind)
    if name is None:
        return ""
    return fill_prompt(name, source=line.source.strip(), won=f"{line.win_rate:.0%}", regret=f"{line.regret:.2f}")
