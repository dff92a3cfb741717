"""Ids and seeds are functions of what they name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas import ids


def test_ids_are_those_written_down_here() -> None:
    """A change of these values would orphan every stored run."""
    env = ids.env_id("run", 2, 5, 1)
    assert env == "359cbb8d-d7b9-517e-9b8e-d42e20c1316d"
    assert ids.play_id(env, 2, "plain", 0) == "18bb3804-50b7-51df-a1d6-65ba99c2e233"


def test_both_arms_share_the_environment_seed_and_not_the_sampling_seed() -> None:
    env = ids.env_id("run", 0, 0, 1)
    plain, hinted = ids.play_id(env, 4, "plain", 3), ids.play_id(env, 4, "hint", 3)
    assert ids.env_seed(env, 4, 3) == ids.env_seed(env, 4, 3)
    assert ids.sampling_seed(plain) != ids.sampling_seed(hinted)


@given(st.text(), st.text(), st.integers(0, 10**6))
def test_seeds_stay_in_their_ranges(env: str, sampled: str, index: int) -> None:
    assert 0 <= ids.env_seed(env, index, index) < 2**31
    assert 0 <= ids.sampling_seed(sampled) < 2**63


def test_parts_do_not_run_into_each_other() -> None:
    assert ids.derive("a", "bc") != ids.derive("ab", "c")
    assert ids.env_id("r", 1, 11, 1) != ids.env_id("r", 11, 1, 1)


def test_a_share_of_ids_is_chosen_by_hash() -> None:
    names = [ids.derive("n", i) for i in range(4000)]
    assert not any(ids.chosen(name, 0.0, "audit") for name in names)
    assert all(ids.chosen(name, 1.0, "audit") for name in names)
    assert 20 <= sum(ids.chosen(name, 0.01, "audit") for name in names) <= 65
