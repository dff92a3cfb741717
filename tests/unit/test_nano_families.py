"""Every family's programs keep the contract, differ, and are explained rightly by their own working."""

from random import Random

import pytest

from trainer.nano.families import FAMILIES, USELESS_HINTS, families_of
from trainer.nano.family import Family, write_source
from trainer.nano.writer import SKILLS, choose_size, draw_memory, draw_play_size, make_environment, play_oracle, working_share

ODD_ACTIONS = ("", " ", "x" * 5000, "\x00\x07", "٣", "9" * 4000, '{"a": [1]}', "print(1)", "-0", "3.0")


def last_part(family: Family, working: str) -> str:
    """The answer that a working amounts to, read off its end."""
    if family.name == "flip":
        return working[::-1]
    if family.name == "add":
        columns = [part.split("=")[1] for part in working.split()]
        return str(int(columns[-1][0] + "".join(column[1] for column in reversed(columns))))
    if family.name == "logic":
        return "".join(part[-1] for part in working.split())
    if family.name == "next":
        return "".join(part[0] for part in working.split("=")[1:])
    if family.name == "toggle":
        return working.split(":")[-1]
    if family.name == "walk":
        return working[-2:]
    if family.name == "cheap":
        totals = {working[index]: int(working[index + 1]) for index in range(0, len(working), 2)}
        return min(totals, key=lambda name: totals[name])
    return working[-1]


def test_the_six_games_skills_have_ten_families_or_more() -> None:
    assert len(SKILLS) == 6
    assert len(FAMILIES) >= 10
    assert all(len(families_of(skill)) >= 2 for skill in SKILLS)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_witness_wins_once_and_nothing_is_paid_after_the_end(name: str) -> None:
    family = FAMILIES[name]
    for size in range(family.sizes[0], family.sizes[1] + 1):
        environment = make_environment(write_source(family, Random(size), size))
        observation, info = environment.reset(size)
        assert isinstance(observation, str)
        assert info == {}
        (action,) = environment.solution()
        assert environment.step(action)[1:] == (1.0, True, False, {})
        assert environment.step(action)[1] == 0.0
        assert environment.step("")[1] == 0.0


@pytest.mark.parametrize("name", FAMILIES)
def test_odd_actions_neither_raise_nor_win_and_the_episode_ends(name: str) -> None:
    family = FAMILIES[name]
    environment = make_environment(write_source(family, Random(1), family.sizes[1]))
    for action in ODD_ACTIONS:
        environment.reset(7)
        results = [environment.step(action) for _ in range(16)]
        assert all(reward == 0.0 for _, reward, _, _, _ in results)
        assert results[-1][2]


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"guess", "ask", "count", "kth"}))
def test_the_working_ends_in_the_answer(name: str) -> None:
    family = FAMILIES[name]
    for seed in range(60):
        environment = make_environment(write_source(family, Random(seed), Random(seed).randint(*family.sizes)))
        observation, _ = environment.reset(seed)
        assert [last_part(family, family.work(observation))] == environment.solution()


@pytest.mark.parametrize("name", FAMILIES)
def test_programs_of_a_size_differ_and_seeds_matter(name: str) -> None:
    family = FAMILIES[name]
    sources = {write_source(family, Random(seed), family.easy[1]) for seed in range(50)}
    assert len(sources) >= 45
    environment = make_environment(sources.pop())
    assert len({environment.solution()[0] for seed in range(30) if environment.reset(seed)}) >= 3


def test_a_careful_search_wins_where_a_careless_one_mostly_loses() -> None:
    family = FAMILIES["guess"]
    wins = {True: 0, False: 0}
    for careful in wins:
        for seed in range(100):
            environment = make_environment(write_source(family, Random(seed), 5))
            turns = play_oracle(Random(seed + 1000), family, environment, seed, careful)
            wins[careful] += turns[-1].action == str(environment.goal)
    assert wins[True] == 100
    assert wins[False] < 40


def test_who_asks_all_wins_where_who_chooses_at_once_mostly_loses_and_asking_without_end_loses() -> None:
    family = FAMILIES["ask"]
    wins = {True: 0, False: 0}
    for careful in wins:
        for seed in range(100):
            environment = make_environment(write_source(family, Random(seed), 5))
            turns = play_oracle(Random(seed + 1000), family, environment, seed, careful)
            assert len(turns) == (6 if careful else 1)
            wins[careful] += turns[-1].action == environment.goal
    assert wins[True] == 100
    assert wins[False] < 40
    environment.reset(1)
    name = next(iter(environment.prices))
    replies = [environment.step(f"?{name}") for _ in range(6)]
    assert [reply[0] for reply in replies] == [str(environment.prices[name])] * 6
    assert [reply[2] for reply in replies] == [False] * 5 + [True]
    assert environment.step(environment.goal)[1] == 0.0


def test_the_first_cycle_begins_with_small_sizes() -> None:
    rng = Random(5)
    for family in FAMILIES.values():
        near = [draw_play_size(rng, family, near=True) for _ in range(300)]
        assert family.easy[0] <= min(near) <= max(near) <= family.easy[1] + family.step
        assert max(draw_play_size(rng, family) for _ in range(300)) > family.easy[1] + family.step


def test_without_a_hint_working_is_shown_the_more_seldom_the_larger_the_task() -> None:
    for family in FAMILIES.values():
        shares = [working_share(family, size, "plain") for size in range(family.sizes[0], family.sizes[1] + 1)]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > 10 * shares[-1] > 0
        assert working_share(family, family.easy[1], "plain") == working_share(family, family.easy[0], "plain")
        assert working_share(family, family.sizes[1], "helpful") == working_share(family, family.easy[0], "helpful")


def test_the_two_families_of_links_say_in_which_direction_they_go() -> None:
    shown = {name: make_environment(write_source(FAMILIES[name], Random(1), 3)).reset(1)[0] for name in ("follow", "cause")}
    assert " by " in shown["follow"]
    assert " in " in shown["cause"]


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_lines_move_the_size_away_from_easy_and_hard(name: str) -> None:
    family = FAMILIES[name]
    rng = Random(3)
    low, high = family.sizes
    middle = (low + high) // 2
    for _ in range(50):
        assert choose_size(rng, family, [("easy", name, middle)]) > middle
        assert choose_size(rng, family, [("hard", name, middle)]) < middle
        assert family.easy[0] <= choose_size(rng, family, [("easy", "other", middle)]) <= family.easy[1]
        assert all(low <= size <= high for _, who, size in draw_memory(rng, family) if who == name)


def test_hints_hold_no_digit_and_no_data_letter() -> None:
    for hint in (*USELESS_HINTS, *(hint for family in FAMILIES.values() for hint in family.hints)):
        assert not any(character.isdigit() or character.isupper() for character in hint)
