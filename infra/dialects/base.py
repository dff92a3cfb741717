"""How a model is spoken to: from records to token ids and back, the same on every side of the log.

In: design slots and observations. Out: prompt tokens for a sampler, and, from sampled tokens, a design or an action. Tokens in,
tokens out: what was sampled is never encoded again. Used by workers/design and workers/rollout, by the evaluation and by the
nano build. Nothing here blocks or raises on a model's output: a completion that can't be read is data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.design import DesignSlot


@dataclass(frozen=True)
class ParsedDesign:
    """A completion read as a design. `error` names what is wrong with its form; then `source` and `hint` may be empty."""

    source: str
    hint: str
    error: str = ""


@dataclass(frozen=True)
class ParsedTurn:
    """The agent's turn read as an action. `fault` names what is wrong with its form; then `action` may be empty."""

    action: str
    fault: str = ""


class Dialect(Protocol):
    """One way of speaking to a model. Implementations hold a tokenizer and no other state."""

    @property
    def name(self) -> str:
        """The recipe's word for it."""
        ...

    @property
    def design_stop_ids(self) -> frozenset[int]:
        """Tokens that end a design."""
        ...

    @property
    def play_stop_ids(self) -> frozenset[int]:
        """Tokens that end the agent's turn."""
        ...

    def design_prompt(self, slot: DesignSlot) -> list[int]:
        """The prompt of one slot: skill, words of the document, memory lines."""
        ...

    def parse_design(self, token_ids: Sequence[int]) -> ParsedDesign:
        """The design in a completion; what goes to the gate is exactly what the tokens decode to."""
        ...

    def open_play(self, observation: str, hint: str | None) -> list[int]:
        """The prompt of an episode's first turn; the hint, where there is one, stands after the observation."""
        ...

    def continue_play(self, observation: str, last: int | None = None) -> list[int]:
        """The tokens to append after the agent's turn: the next observation and the request to speak.

        `last`: the turn's last token, by which a chat template knows whether the turn still has to be ended.
        """
        ...

    def read_turn(self, token_ids: Sequence[int]) -> ParsedTurn:
        """The action in the agent's turn, and the fault of its form."""
        ...

    def parse_action(self, token_ids: Sequence[int]) -> str:
        """The action text in the agent's turn; empty where it names none."""
        ...

    def describe(self, source: str) -> tuple[str, int]:
        """Family and size of an environment as memory lines name them; ("other", 0) where the source tells neither."""
        ...
