"""The agent's turn as an action: boxes, tool calls and answers, read strictly; a fault is named and never raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.actions import FORMS, Action, read_action, read_block, read_box, read_call, with_hint

CALL = '<tool_call>{"name": "look", "arguments": {"shelf": "east", "n": 3}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("So it is \\boxed{42}.", Action("\\boxed{42}")),
        ("First \\boxed{1}, no: \\boxed{2}", Action("\\boxed{2}")),
        ("\\boxed{\\frac{1}{2}} it is", Action("\\boxed{\\frac{1}{2}}")),
        ("\\boxed{}", Action("\\boxed{}")),
        ("\\boxed{a\nb}", Action("\\boxed{a\nb}")),
        ("\\boxed{7} and then \\boxed{8", Action("\\boxed{7}")),
        ("42", Action("", "no box")),
        ("", Action("", "no box")),
        ("\\boxed{42", Action("", "a box is never closed")),
        ("\\boxed {42}", Action("", "no box")),
        ("}{ \\boxed{1} } \\boxed{{2}", Action("\\boxed{1}")),
        ("\\boxed{" * 9000, Action("", "a box is never closed")),
    ],
)
def test_the_last_closed_box_is_the_action(text: str, action: Action) -> None:
    assert read_box(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (f"I look first.\n{CALL}\n", Action(CALL)),
        ("<answer>12 crowns</answer>", Action("<answer>12 crowns</answer>")),
        ("<answer></answer>", Action("<answer></answer>")),
        ("no tags", Action("", "no call and no answer")),
        (CALL + CALL, Action("", "more than one call or answer")),
        (f"{CALL}<answer>1</answer>", Action("", "more than one call or answer")),
        ("<answer>1</answer><answer>2</answer>", Action("", "more than one call or answer")),
        ("<tool_call>{}", Action("", "a call or answer is never closed")),
        ("</answer>1<answer>", Action("", "a call or answer is never closed")),
        ("<tool_call>{}</answer>", Action("", "a call or answer is never closed")),
        ("<tool_call>x</tool_call>", Action("<tool_call>x</tool_call>", "a call that is not JSON")),
    ],
)
def test_exactly_one_block_is_the_action(text: str, action: Action) -> None:
    assert read_block(text) == action


def test_a_call_is_read_with_its_arguments() -> None:
    call = read_call(CALL)
    assert (call.name, call.arguments, call.fault) == ("look", {"shelf": "east", "n": 3}, "")


@pytest.mark.parametrize(
    ("held", "fault"),
    [
        ("", "not JSON"),
        ("{'name': 'x'}", "not JSON"),
        ('{"name": "x", "arguments": {"n": NaN}}', "not JSON"),
        ('{"name": "x", "name": "y", "arguments": {}}', "not JSON"),
        ('{"name": "x", "arguments": {"n": 1, "n": 2}}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["x", {}]', "without exactly a name and arguments"),
        ('{"name": "x"}', "without exactly a name and arguments"),
        ('{"name": "x", "arguments": {}, "id": 1}', "without exactly a name and arguments"),
        ('{"name": "", "arguments": {}}', "no text"),
        ('{"name": 3, "arguments": {}}', "no text"),
        ('{"name": "x", "arguments": []}', "no object"),
        ('{"name": "x", "arguments": "{}"}', "no object"),
    ],
)
def test_a_malformed_call_goes_on_with_its_fault(held: str, fault: str) -> None:
    block = f"<tool_call>{held}</tool_call>"
    action = read_action("tools", f"thus {block}")
    assert action.text == block
    assert fault in action.fault


@given(st.text(), st.sampled_from(FORMS))
def test_no_text_raises_and_what_is_read_reads_the_same_again(text: str, form: str) -> None:
    action = read_action(form, text)  # type: ignore[arg-type] # one of FORMS
    assert action.text in text
    if action.text:
        assert read_action(form, action.text) == action  # type: ignore[arg-type] # as above


@given(
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=4),
    st.text(min_size=1),
)
def test_every_well_formed_call_is_read_back(arguments: dict[str, object], name: str) -> None:
    block = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    call = read_call(block)
    assert (call.name, call.arguments, call.fault) == (name, arguments, "")


def test_the_hint_follows_the_first_observation() -> None:
    assert with_hint("Add 1 and 2.", None) == "Add 1 and 2."
    assert with_hint("Add 1 and 2.", "Count.") == "Add 1 and 2.\n\nHint: Count."
