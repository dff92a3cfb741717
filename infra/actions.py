"""The agent's visible text as an action, in the form of a setting: `\\boxed{}` in games, one tool call or one answer in tool use.

In: what the agent wrote after its thinking. Out: the text that the environment's step takes, and the fault of its form. The
action is the block itself, brackets and tags included, as the paper's environments take it; text around it is the agent's own.
Where no block can be told (none, more than one, one that never closes) the action is empty, which every environment has to
answer. A tool call whose JSON is wrong goes to the environment as it is: its answer says what is wrong. Called by the chat
dialects, the gate and the Gymnasium adapter. Nothing here raises on a model's output.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

ActionForm = Literal["plain", "games", "tools"]  # plain: the nano model's, any text
FORMS: Final[tuple[ActionForm, ...]] = ("plain", "games", "tools")
BOX: Final = "\\boxed{"
CALL: Final = ("<tool_call>", "</tool_call>")
ANSWER: Final = ("<answer>", "</answer>")
_TAG: Final = re.compile(r"</?(?:tool_call|answer)>")


def action_form(dialect: str) -> ActionForm:
    """The form of the actions that a dialect hands to environments."""
    return "games" if dialect == "games" else "tools" if dialect == "tools" else "plain"


@dataclass(frozen=True)
class Action:
    """`text` goes to the environment. `fault`: none (""), or what is wrong with the form."""

    text: str
    fault: str = ""


@dataclass(frozen=True)
class ToolCall:
    """A call that was read. `fault` says why it can't be one; then the rest is empty."""

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    fault: str = ""


def read_action(form: ActionForm, text: str) -> Action:
    """The action in the agent's visible text."""
    if form == "games":
        return read_box(text)
    return read_block(text) if form == "tools" else Action(text)


def read_box(text: str) -> Action:
    """The last `\\boxed{...}` whose braces close; escaped braces count as braces, so a set is \\boxed{\\{1, 2\\}}."""
    starts = [found.start() for found in re.finditer(re.escape(BOX), text)]
    if not starts:
        return Action("", "no box")
    closes: dict[int, int] = {}  # by its opening brace; one pass, however many boxes a text begins
    opened: list[int] = []
    for place, sign in enumerate(text):
        if sign == "{":
            opened.append(place)
        elif sign == "}" and opened:
            closes[opened.pop()] = place
    for start in reversed(starts):
        end = closes.get(start + len(BOX) - 1)
        if end is not None:
            return Action(text[start : end + 1])
    return Action("", "a box is never closed")


def read_block(text: str) -> Action:
    """The one `<tool_call>...</tool_call>` or `<answer>...</answer>`; two tags are due, a pair of one kind."""
    tags = [(found.group(), found.start(), found.end()) for found in _TAG.finditer(text)]
    if not tags:
        return Action("", "no call and no answer")
    if len(tags) > 2:
        return Action("", "more than one call or answer")
    (first, start, _), (last, _, end) = tags[0], tags[-1]
    if len(tags) == 1 or (first, last) not in (CALL, ANSWER):
        return Action("", "a call or answer is never closed")
    block = text[start:end]
    return Action(block, read_call(block).fault if first == CALL[0] else "")


def read_call(block: str) -> ToolCall:
    """A `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, read strictly: exactly these two keys, a name that is not
    empty, an object of arguments, no key twice, no number that JSON doesn't know."""
    block = block.strip()
    if not (block.startswith(CALL[0]) and block.endswith(CALL[1])):
        return ToolCall(fault="no call")
    try:
        found = json.loads(block[len(CALL[0]) : -len(CALL[1])], object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ToolCall(fault="a call that is not JSON")
    if not isinstance(found, dict) or set(found) != {"name", "arguments"}:
        return ToolCall(fault="a call without exactly a name and arguments")
    if not isinstance(found["name"], str) or not found["name"] or not isinstance(found["arguments"], dict):
        return ToolCall(fault="a call whose name is no text or whose arguments are no object")
    return ToolCall(found["name"], found["arguments"])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def with_hint(observation: str, hint: str | None) -> str:
    """The first observation as the hint arm is shown it."""
    return observation if hint is None else f"{observation}\n\nHint: {hint}"
