"""Plays inside the gate: what is played for real, what is read from the record, what shares an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.fakes.sandbox import FakeSandbox
from workers.gate import plays
from workers.gate.plays import CPU_S, ON_ONE_OBJECT, Play, Table, constant, scripted
from workers.gate.rules import GateInterrupted, GateRule, Refused
from workers.sandbox.base import EndReason

TWO_TURNS = """
class SayEnv:
    def __init__(self, max_turns=25):
        self.said = []
        self.resets = 0
    def reset(self, seed=None):
        self.said = [str(seed)]
        self.resets += 1
        return "begin " + str(seed), {}
    def step(self, action):
        self.said.append(action)
        return " ".join(self.said), 0.0, len(self.said) > 2, False, {}
"""
ONE_TURN = TWO_TURNS.replace("len(self.said) > 2", "True")
COUNTS_RESETS = ONE_TURN.replace('return " ".join(self.said)', 'return str(self.resets) + " ".join(self.said)')


def table_of(source: str = TWO_TURNS, failures: dict[tuple[str, int], EndReason] | None = None) -> tuple[Table, FakeSandbox]:
    sandbox = FakeSandbox(failures)
    return Table(sandbox, source, 25), sandbox


def test_info_of_any_reset_is_refused_of_the_first_as_of_the_last_on_one_object() -> None:
    played, _ = table_of(ONE_TURN)
    recorded = played.play(1, constant("a"))
    tells_at_once = ONE_TURN.replace("+ str(seed), {}", '+ str(seed), {"answer": 1}')
    tells_later = ONE_TURN.replace("+ str(seed), {}", "+ str(seed), {} if self.resets < 3 else {1: 1}")
    ways: list[tuple[str, Callable[[Table], object]]] = [
        (tells_at_once, lambda table: table.play(1, constant("a"))),
        (tells_later, lambda table: table.repeat([recorded] * 3, GateRule.RESET)),
        (tells_later, lambda table: table.play_each(["a"] * 3, [1], GateRule.SURVIVES)),
    ]
    for source, way in ways:
        with pytest.raises(Refused) as caught:
            way(table_of(source)[0])
        assert caught.value.rule is GateRule.INFO


def said(play: Play) -> list[str]:
    return [step.observation for step in play.steps]


def test_play_that_is_on_record_opens_no_session_once_replay_has_passed() -> None:
    table, sandbox = table_of()
    first = table.play(3, scripted(["a", "b"]))
    table.play(3, scripted(["a", "b"]))
    assert sandbox.calls["open"] == 2

    table.repeats = True
    assert table.play(3, scripted(["a", "b"])) == first
    assert table.play(3, scripted(["a"])).actions == ("a",)
    assert sandbox.calls["open"] == 2


def test_play_that_leaves_the_record_is_played_for_real_from_its_start() -> None:
    table, sandbox = table_of()
    table.play(3, scripted(["a", "b"]))
    table.repeats = True
    asked: list[int] = []

    def policy(_first: str, observation: str, turn: int) -> str:
        asked.append(turn)
        return "a" if turn == 0 else f"c after {observation}"

    play = table.play(3, policy)

    assert said(play) == ["3 a", "3 a c after 3 a"]
    assert asked == [0, 1]
    assert (sandbox.calls["open"], sandbox.calls["step"]) == (2, 4)


def test_another_seed_is_played_for_real() -> None:
    table, sandbox = table_of()
    table.play(3, constant("a"))
    table.repeats = True
    assert said(table.play(4, constant("a"))) == ["4 a", "4 a a"]
    assert sandbox.calls["open"] == 2


@pytest.mark.parametrize("asked", [{"hash_seed": 1}, {"beyond_end": "a"}, {"rule": GateRule.REPLAY}], ids=str)
def test_replay_and_the_step_beyond_the_end_never_read_the_record(asked: dict[str, object]) -> None:
    table, sandbox = table_of()
    table.play(3, constant("a"))
    table.repeats = True
    table.play(3, constant("a"), **asked)  # type: ignore[arg-type] # one of the parameters above
    assert sandbox.calls["open"] == 2


def test_results_of_the_other_jail_are_not_recorded() -> None:
    table, sandbox = table_of()
    table.play(3, constant("a"), hash_seed=1)
    table.repeats = True
    table.play(3, constant("a"))
    assert sandbox.calls["open"] == 2


def actions_of(plays: Sequence[Play]) -> list[str]:
    return [action for play in plays for action in play.actions]


def test_each_action_is_played_once_on_few_objects_and_one_of_each_on_a_new_one() -> None:
    table, sandbox = table_of(ONE_TURN)
    tried = [f"action {number}" for number in range(ON_ONE_OBJECT + 3)]

    plays = table.play_each(tried, [5, 6, 7], GateRule.SURVIVES)

    assert actions_of(plays) == tried
    assert [play.seed for play in plays[:4]] == [5, 6, 7, 5]
    assert sandbox.calls["open"] == 2 + 2
    assert sandbox.open_sessions == 0


def test_several_actions_share_an_episode_that_goes_on() -> None:
    table, _ = table_of(TWO_TURNS)
    plays = table.play_each(["a", "b", "c"], [5], GateRule.SURVIVES)
    assert [play.actions for play in plays] == [("a", "b"), ("c",)]


def test_object_that_counts_its_resets_is_refused() -> None:
    table, _ = table_of(COUNTS_RESETS)
    with pytest.raises(Refused) as caught:
        # by hash one of the later episodes is drawn
        table.play_each([f"action {number}" for number in range(ON_ONE_OBJECT)], [5], GateRule.SURVIVES)
    assert caught.value.rule is GateRule.RESET


@pytest.mark.parametrize("operation", ["open", "step"])
def test_machine_that_fails_while_actions_are_tried_is_no_verdict(operation: str) -> None:
    table, _ = table_of(ONE_TURN, {(operation, 1): EndReason.DIED})
    with pytest.raises(GateInterrupted):
        table.play_each(["a", "b"], [5], GateRule.SURVIVES)


@pytest.mark.parametrize("operation", ["open", "step"])
def test_environment_that_fails_while_actions_are_tried_is_refused_by_the_rule_that_tries(operation: str) -> None:
    table, _ = table_of(ONE_TURN, {(operation, 1): EndReason.OOM})
    with pytest.raises(Refused) as caught:
        table.play_each(["a", "b"], [5], GateRule.SURVIVES)
    assert caught.value.rule is GateRule.SURVIVES


def test_judgement_that_uses_up_its_processor_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plays, "LOOK_S", 0.0)
    table, sandbox = table_of()
    table.play(3, scripted(["a"]))
    sandbox.used_s = CPU_S + 1
    with pytest.raises(Refused) as played:
        table.play(4, scripted(["a"]))
    with pytest.raises(Refused) as tried:
        table.play_each(["a"], [3], GateRule.SURVIVES)
    assert played.value.rule is tried.value.rule is GateRule.JAIL
    assert "of CPU time" in played.value.evidence
