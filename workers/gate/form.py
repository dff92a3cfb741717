"""The gate's rule of form: a policy of the design's setting can play it. In: Judged. Out: Refused, or numbers.

Games: every action of the witness is one `\\boxed{...}`. Tool use: every action of the witness is one strict tool call or one
answer, the first observation names every tool that the witness calls, and a malformed call is answered with an observation: no
crash, no end, no pay. The plain form, the nano model's, asks nothing.
"""

from __future__ import annotations

from typing import Final

from infra.actions import ANSWER, read_action, read_call
from workers.gate.dynamic import Judged, Numbers
from workers.gate.plays import scripted
from workers.gate.rules import GateRule, Refused

# What a chat dialect hands on for a turn that it can't read, and calls that are wrong in one way each.
MALFORMED: Final = (
    "",
    "<tool_call>this is not JSON</tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>[1, 2]</tool_call>",
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "NAME"}</tool_call>',
    '<tool_call>{"name": "NAME", "arguments": ["x"]}</tool_call>',
    '<tool_call>{"name": "NAME", "arguments": {"no such argument": {"x": [null]}}}</tool_call>',
)


def check_form(judged: Judged) -> Numbers:
    """See the module."""
    if judged.form == "plain":
        return {}
    for seed, actions in judged.witness.items():
        for action in actions:
            read = read_action(judged.form, action)
            if read.fault or read.text != action.strip():
                told = read.fault or "text around the block"
                raise Refused(GateRule.FORM, f"seed {seed}: the witness's action {action[:80]!r} has not the form: {told}")
    return _check_tools(judged) if judged.form == "tools" else {}


def _check_tools(judged: Judged) -> Numbers:
    names: list[str] = []
    for play in judged.witness_plays:
        calls = [read_call(action).name for action in play.actions if not action.strip().startswith(ANSWER[0])]
        for name in calls:
            if name not in play.first:
                raise Refused(GateRule.FORM, f"seed {play.seed}: the first observation does not describe the tool {name!r}")
        names += calls
    if not names:
        raise Refused(GateRule.FORM, "the witness calls no tool")
    for index, text in enumerate(MALFORMED if judged.table.cap > 1 else ()):
        action = text.replace("NAME", names[0])
        play = judged.table.play(judged.seeds[index % len(judged.seeds)], scripted([action]), rule=GateRule.FORM)
        step = play.steps[0]
        if play.ended or not step.observation.strip() or step.reward > 0:
            seen = "the episode ends" if play.ended else "nothing is answered" if step.reward <= 0 else "it is paid"
            raise Refused(
                GateRule.FORM, f"seed {play.seed}: a malformed call is to be answered, but {seen} after {action[:80]!r}"
            )
    return {"tools": len(set(names)), "malformed": len(MALFORMED)}
