"""How the free schedule fills batches: first scored first, what is too old dropped, what was evicted taken without samples."""

from __future__ import annotations

import itertools
import random

from schemas.common import Reference, VersionSpan
from schemas.design import Member, SlotsClosed
from schemas.rollout import HINTED, PLAIN
from schemas.score import ArmScore, EnvScored, PlayReturn
from schemas.settings import Recipe
from streams.assembly import Assembly
from tests.streamworld import small_recipe

PLACE = Reference(topic="t", partition=0, offset=0, id="x")


def recipe(**more: object) -> Recipe:
    schedule = {"kind": "free", "steps": 4, "interval": 2, "delay": 2, "lag": 1, "lead": 0, "max_lag_agent": 1, **more}
    return small_recipe(schedule=schedule)


def slots(generation: int, *names: str) -> SlotsClosed:
    members = [
        Member(
            env_id=name, slot=place, design_attempt=0, skill="", document_id="", group="", source="", hint="", proposal=PLACE,
            source_digest="", witness_min_return=1.0, reward_min=0.0,
        )
        for place, name in enumerate(names)
    ]  # fmt: skip
    return SlotsClosed(run_id="r", event_id=f"s{generation}", generation=generation, policy_version=0, members=members)


def score(env_id: str, step: int, version: int, *, repeat: int = 0, evicted: str = "", plays: int = 2) -> EnvScored:
    made = {
        arm: [
            PlayReturn(
                play_id=f"{env_id}-{step}-{arm}-{index}-{repeat}", index=index, episode_return=0.0, won=False, reference=PLACE,
                versions=VersionSpan(oldest=version, newest=version),
            )
            for index in range(plays)
        ]
        for arm in (PLAIN, HINTED)
    }  # fmt: skip
    return EnvScored(
        run_id="r", event_id=f"{env_id}@{step}#{repeat}", env_id=env_id, step=step, generation=step // 2, repeat=repeat,
        arms=[ArmScore(arm=arm, plays=own, mean=0.0, win_rate=0.0) for arm, own in made.items()], evicted=evicted,
    )  # fmt: skip


def test_a_batch_takes_the_groups_that_were_scored_first_of_whatever_step() -> None:
    assembly = Assembly(recipe())
    assembly.note_slots(slots(0, "a", "b"))
    for one in (score("a", 0, 0), score("a", 1, 0), score("b", 0, 0)):
        assembly.note_scored(one)
    (first,), stale = assembly.advance()
    assert [(group.scored.env_id, group.scored.step) for group in first.groups] == [("a", 0), ("a", 1)]
    assert (first.step, stale, assembly.is_used_up(0)) == (0, [], None)
    assembly.note_scored(score("b", 1, 0))
    (second,), _ = assembly.advance()
    assert [(group.scored.env_id, group.scored.step) for group in second.groups] == [("b", 0), ("b", 1)]
    assert assembly.is_used_up(0) == 1


def test_a_group_too_old_for_its_batch_is_dropped_and_its_repeat_taken_in_its_place() -> None:
    assembly = Assembly(recipe())
    for generation, names in ((0, ("a",)), (1, ("c",))):
        assembly.note_slots(slots(generation, *names))
    for one in (score("a", 1, 0), score("c", 2, 1), score("a", 0, 0)):
        assembly.note_scored(one)
    filled, (stale,) = assembly.advance()
    assert [(one.step, one.groups[0].scored.step) for one in filled] == [(0, 1), (1, 2)]
    assert (stale.scored.env_id, stale.scored.step, stale.batch) == ("a", 0, 2)
    assembly.note_scored(score("a", 0, 1, repeat=1))
    (third,), again = assembly.advance()
    assert (third.step, third.groups[0].scored.repeat, third.stale, again) == (2, 1, 2, [])


def test_groups_without_samples_are_never_too_old_and_evicted_ones_are_taken_without_theirs() -> None:
    assembly = Assembly(recipe(max_lag_agent=None, lag=0))
    assembly.note_slots(slots(0, "a"))
    assembly.note_slots(slots(1, "b"))
    for one in (score("a", 0, 0), score("a", 1, 0, evicted="audit"), score("b", 2, 0, plays=0), score("b", 3, 3)):
        assembly.note_scored(one)
    filled, stale = assembly.advance()
    assert [one.groups[0].samples for one in filled] == [2, 0, 0, 2]
    assert [one.evicted for one in filled] == [set(), {"a"}, set(), set()]
    assert stale == []


def test_an_empty_generation_gives_empty_batches_and_is_used_up_at_once() -> None:
    assembly = Assembly(recipe())
    assembly.note_slots(slots(0))
    filled, _ = assembly.advance()
    assert [(one.step, one.groups) for one in filled] == [(0, []), (1, [])]
    assert (assembly.is_used_up(0), assembly.is_used_up(1)) == (-1, None)


def test_when_the_slots_become_known_and_copies_of_scores_change_nothing() -> None:
    scores = [
        score(env_id, step, max(0, step - 1)) for step, env_id in itertools.product(range(4), "ab") if (env_id == "a") or step < 2
    ]
    scores += [score("c", step, step - 1) for step in (2, 3)]
    told = set()
    for seed in range(20):
        draw, assembly = random.Random(seed), Assembly(recipe(max_lag_agent=2))
        late = [slots(0, "a", "b"), slots(1, "a", "c")]
        taken = []
        for one in scores:
            while late and draw.random() < 0.4:
                assembly.note_slots(late.pop(0))
            for _ in range(draw.randint(1, 2)):
                assembly.note_scored(one)
            taken += assembly.advance()[0]
        for one_slots in late:
            assembly.note_slots(one_slots)
        taken += assembly.advance()[0]
        told.add(tuple((one.step, tuple(group.scored.event_id for group in one.groups)) for one in taken))
    assert len(told) == 1
    assert len(next(iter(told))) == 4


def test_plays_of_environments_that_are_no_members_are_passed_over() -> None:
    assembly = Assembly(recipe())
    assembly.note_slots(slots(0, "a"))
    for one in (score("older", 0, 0), score("a", 0, 0)):
        assembly.note_scored(one)
    (first,), stale = assembly.advance()
    assert ([group.scored.env_id for group in first.groups], stale) == (["a"], [])
