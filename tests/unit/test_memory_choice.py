"""Which of the ranked environments a prompt shows: drawn, spread, negatives by kind; the same in whatever order they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra.selection import Candidate, choose
from schemas.recipes import build_recipe
from schemas.settings import MemorySettings

MENDED = MemorySettings()
PAPER = build_recipe({"algorithm": "published"}).memory
NANO = MemorySettings(generations=8, priority="reward", negatives=("easy", "easy", "hard", "hard"))
RATES = {"best": 0.5, "easy": 0.95, "hard": 0.05, "repeated": 0.5}


def candidate(number: int, kind: str = "best", signature: tuple[int, ...] = ()) -> Candidate:
    return Candidate(f"e{number:03d}", kind, generation=0, win_rate=RATES[kind], regret=0.1, signature=signature)


def test_published_draws_two_seeds_of_the_ten_and_one_negative_of_either_kind() -> None:
    best = [candidate(number) for number in range(30)]  # best first, as the store ranks them
    seen, negatives = set(), set()
    for draw in range(200):
        lines = choose([*best, candidate(100, "easy"), candidate(101, "hard")], PAPER, f"draw {draw}")
        assert [line.kind for line in lines[:2]] == ["best", "best"]
        assert len({line.env_id for line in lines}) == 3
        seen |= {line.env_id for line in lines[:2]}
        negatives |= {line.env_id for line in lines[2:]}
    assert seen == {f"e{number:03d}" for number in range(10)}
    assert negatives == {"e100", "e101"}


def test_the_second_seed_is_the_farthest_from_the_first_and_ties_go_to_the_lower_id() -> None:
    near = [candidate(number, signature=(1, 2, 3, number)) for number in range(4)]
    far = [candidate(number, signature=(7, 8, 9, 1)) for number in (8, 7)]
    for draw in range(40):
        first, second = choose([*near, *far], MENDED, f"draw {draw}")
        assert second.env_id == ("e007" if first.env_id < "e004" else "e000")


def test_each_further_seed_is_far_from_all_before_it() -> None:
    clusters = [candidate(10 * kind + copy, signature=(kind,) * 8) for kind in range(3) for copy in range(3)]
    for draw in range(40):
        seeds = choose(clusters, MemorySettings(seeds=3), f"draw {draw}")
        assert {int(seed.env_id[1:]) // 10 for seed in seeds} == {0, 1, 2}


def test_mended_shows_one_too_easy_one_too_hard_and_the_most_repeated_which_is_no_seed() -> None:
    ranked = [candidate(number) for number in range(3)] + [candidate(4, "easy"), candidate(5, "hard")]
    ranked += [candidate(0, "repeated"), candidate(2, "repeated")]
    for draw in range(40):
        lines = choose(ranked, MENDED, f"draw {draw}")
        assert [line.kind for line in lines] == ["best", "best", "easy", "hard", "repeated"]
        assert lines[-1].env_id == "e000"
        assert sorted(line.env_id for line in lines[:2]) == ["e001", "e002"]


def test_an_environment_that_is_too_easy_and_the_most_repeated_is_shown_once() -> None:
    lines = choose([candidate(0, "easy"), candidate(1, "easy"), candidate(0, "repeated")], MENDED, "d")
    assert [(line.env_id, line.kind) for line in lines] == [("e001", "easy"), ("e000", "repeated")]


def test_the_nano_lines_are_two_of_each_kind_in_order() -> None:
    many = [candidate(number, ("best", "easy", "hard")[number % 3]) for number in range(60)]
    lines = choose(many, NANO, "d")
    assert [line.kind for line in lines] == ["best", "best", "easy", "easy", "hard", "hard"]
    assert all(int(line.env_id[1:]) < 30 for line in lines[:2])
    assert len({line.env_id for line in lines}) == 6


def test_nothing_remembered_gives_no_lines() -> None:
    for settings in (MENDED, PAPER, NANO):
        assert choose([], settings, "d") == []
    assert choose([candidate(0), candidate(1, "easy")], MemorySettings(seeds=0, negatives=()), "d") == []


@given(st.permutations([candidate(number, signature=(number % 3, number % 4)) for number in range(10)]), st.text(max_size=5))
def test_the_choice_depends_on_what_is_ranked_and_never_on_the_order_of_equals(shuffled: list[Candidate], draw: str) -> None:
    for settings in (MENDED, PAPER, NANO):
        assert choose(shuffled, settings, draw) == choose(sorted(shuffled, key=lambda one: one.env_id), settings, draw)
