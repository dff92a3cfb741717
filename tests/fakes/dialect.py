"""A dialect without a tokenizer: a token a letter."""

from __future__ import annotations

from collections.abc import Sequence

from infra.dialects import ParsedDesign, ParsedTurn
from schemas.design import DesignSlot

EOS = 0


class LetterDialect:
    """A token a letter; 0 ends a turn."""

    name = "letters"
    design_stop_ids = frozenset({EOS})
    play_stop_ids = frozenset({EOS})

    def design_prompt(self, slot: DesignSlot) -> list[int]:
        return encode(slot.skill)

    def parse_design(self, token_ids: Sequence[int]) -> ParsedDesign:
        """SOURCE|HINT and the end; a third part or a missing end is an error."""
        parts = self.parse_action(token_ids).split("|")
        if len(parts) != 2 or EOS not in token_ids:
            return ParsedDesign("", "", f"{len(parts)} parts")
        return ParsedDesign(*parts)

    def open_play(self, observation: str, hint: str | None) -> list[int]:
        return encode(observation + (f"|{hint}" if hint is not None else "") + ">")

    def continue_play(self, observation: str, last: int | None = None) -> list[int]:
        return encode(f"{observation}>")

    def read_turn(self, token_ids: Sequence[int]) -> ParsedTurn:
        return ParsedTurn(self.parse_action(token_ids))

    def parse_action(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != EOS)

    def describe(self, source: str) -> tuple[str, int]:
        return "other", 0


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]
