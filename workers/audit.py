"""Repeats a recorded play in a fresh jail and tells the first difference.

In: the play text and a finished play. Out: "" where seed and actions gave the same observations, rewards and end again, else what
differed. Called by workers.validate; `spade replay` can use it too. Blocks for the play; raises AuditInterruptedError where the
machine ended the session.
"""

from __future__ import annotations

from schemas.common import Record
from schemas.rollout import RolloutFinished
from workers.sandbox.base import Sandbox, Session, SessionEnd, is_infrastructure
from workers.sessions import end_reason


class AuditInterruptedError(Exception):
    """The machine ended the session: repeat the audit, it is no difference."""


def repeat_play(sandbox: Sandbox, source: str, play: Record, max_turns: int) -> str:
    """The first difference, "" where there is none."""
    assert isinstance(play, RolloutFinished)  # audits refer to plays
    try:
        with sandbox.open(source, max_turns=max_turns) as session:
            return _compare(session, play)
    except SessionEnd as end:
        if is_infrastructure(end.reason):
            raise AuditInterruptedError(str(end)) from end
        return f"before the first turn: {end}" if end_reason(end) != play.end_reason or play.turns else ""


def _compare(session: Session, play: RolloutFinished) -> str:
    shown = session.reset(play.env_seed)
    if not play.turns:
        return (
            ""
            if play.end_reason == "context"
            else f"the play ended with {play.end_reason} before its first turn, the repetition did not"
        )
    for number, turn in enumerate(play.turns):
        last = number == len(play.turns) - 1
        if shown != turn.observation:
            return f"turn {number}: observation {_short(shown)} where {_short(turn.observation)} was seen"
        try:
            result = session.step(turn.action)
        except SessionEnd as end:
            if is_infrastructure(end.reason):
                raise
            return "" if last and end_reason(end) == play.end_reason else f"turn {number}: {end}"
        if result.reward != turn.reward:
            return f"turn {number}: reward {result.reward!r} where {turn.reward!r} was seen"
        ended = "terminated" if result.terminated else "truncated" if result.truncated else ""
        was = play.end_reason if last and play.end_reason in ("terminated", "truncated") else ""
        if ended != was:
            return f"turn {number}: {ended or 'went on'} where it {was or 'went on'}"
        shown = result.observation
    if play.end_reason in ("terminated", "truncated", "turns", "context"):
        return "" if shown == play.final_observation else f"the last observation {_short(shown)} differs"
    return f"the play ended with {play.end_reason}, the repetition did not"


def _short(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")
