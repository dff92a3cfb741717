"""Advantages of designer and agent, by the vectors of the method."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.advantage import centred, designer_scale, z_scores


@pytest.mark.parametrize(
    ("n_designer", "n_agent", "interval", "expected"), [(24, 192, 4, 32), (24, 192, 8, 50), (16, 256, 32, 50), (0, 1, 4, 1)]
)
def test_designer_scale_vectors(n_designer: int, n_agent: int, interval: int, expected: float) -> None:
    assert designer_scale(n_designer, n_agent, interval) == expected


def test_three_designs_of_one_skill_give_the_published_advantages() -> None:
    advantages = centred([1.0, 1 / 6, 0.0], ["logic"] * 3, 32)
    assert advantages == pytest.approx([19.5556, -7.1111, -12.4444], abs=1e-4)


def test_designs_of_other_skills_do_not_move_a_designs_advantage() -> None:
    alone = centred([1.0, 0.0], ["logic", "logic"], 32)
    mixed = centred([1.0, 0.7, 0.0], ["logic", "maths", "logic"], 32)
    assert [mixed[0], mixed[2]] == alone
    assert mixed[1] == 0.0


def test_z_score_uses_the_population_deviation() -> None:
    assert z_scores([1.0, 0.0, 0.0, 0.0], ["a"] * 4) == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rel=1e-6)


def test_equal_returns_and_lone_plays_have_no_advantage() -> None:
    assert z_scores([1.0, 1.0, 0.3], ["a", "a", "b"]) == [0.0, 0.0, 0.0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1, 1)), max_size=30))
def test_every_value_gets_one_advantage_and_groups_are_centred(pairs: list[tuple[str, float]]) -> None:
    groups, values = [group for group, _ in pairs], [value for _, value in pairs]
    for advantages in (z_scores(values, groups), centred(values, groups, 32)):
        assert len(advantages) == len(values)
        for group in set(groups):
            assert math.fsum(a for a, own in zip(advantages, groups, strict=True) if own == group) == pytest.approx(0, abs=1e-6)
