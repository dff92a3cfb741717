"""Which earlier environments are shown: by skill, win rate and regret, the same whenever asked, in whatever order they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra.memory import Candidate, choose_lines
from schemas.settings import MemorySettings

PAPER = MemorySettings()
NANO = MemorySettings(generations=8)


def candidate(number: int, win_rate: float, regret: float = 0.0, skill: str = "s", reward: float = 0.0) -> Candidate:
    return Candidate(
        env_id=f"e{number:03d}", generation=0, slot=number, skill=skill, source=f"code {number}", hint="h", win_rate=win_rate,
        regret=regret, reward=reward,
    )  # fmt: skip


def test_two_seeds_come_from_the_ten_of_highest_regret_and_one_negative_from_beyond_the_frontier() -> None:
    frontier = [candidate(number, 0.5, regret=number / 100) for number in range(30)]
    beyond = [candidate(100, 0.95), candidate(101, 0.05), candidate(102, 0.9), candidate(103, 0.1)]
    seen = set()
    for draw in range(200):
        lines = choose_lines([*frontier, *beyond], "s", PAPER, f"draw {draw}")
        assert [line.kind for line in lines[:2]] == ["best", "best"]
        assert lines[0].env_id != lines[1].env_id
        assert (lines[2].env_id, lines[2].kind) in {("e100", "easy"), ("e101", "hard")}
        seen |= {line.env_id for line in lines[:2]}
    assert seen == {f"e{number:03d}" for number in range(20, 30)}


def test_the_frontier_includes_its_ends_and_other_skills_are_never_shown() -> None:
    lines = choose_lines(
        [candidate(0, 0.15), candidate(1, 0.85), candidate(2, 0.5, skill="other"), candidate(3, 0.86)], "s", PAPER, "d"
    )
    assert sorted(line.env_id for line in lines) == ["e000", "e001"]


def test_the_nano_lines_are_two_of_each_kind_in_order() -> None:
    many = [candidate(number, (0.5, 0.95, 0.05)[number % 3], reward=number / 100) for number in range(60)]
    lines = choose_lines(many, "s", NANO, "d")
    assert [line.kind for line in lines] == ["best", "best", "easy", "easy", "hard", "hard"]
    assert all(int(line.env_id[1:]) >= 30 for line in lines[:2])


def test_nothing_remembered_gives_no_lines() -> None:
    assert choose_lines([], "s", PAPER, "d") == []


@given(st.permutations([candidate(number, number / 20, regret=(number % 4) / 10) for number in range(21)]), st.text(max_size=5))
def test_the_choice_depends_on_what_is_stored_and_never_on_its_order(shuffled: list[Candidate], draw: str) -> None:
    for settings in (PAPER, NANO):
        assert choose_lines(shuffled, "s", settings, draw) == choose_lines(
            sorted(shuffled, key=lambda one: one.env_id), "s", settings, draw
        )
