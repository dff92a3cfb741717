"""The rollout stage: which plays are asked for, with which seeds, and when."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.common import Record, Reference
from schemas.design import Member, SlotsClosed
from schemas.rollout import EARLIER_HINTED, EARLIER_PLAIN, HINTED, PLAIN, RolloutRequested
from schemas.run import RunEnding
from schemas.score import EnvScored
from schemas.topics import BY_RECORD
from streams.rollout import RolloutJoin, split_evenly
from streams.stage import Outputs, Positioned
from tests.streamworld import policy, small_recipe


def make_slots(generation: int = 0, members: int = 3) -> SlotsClosed:
    made = [
        Member(
            env_id=f"env-{generation}-{slot}",
            slot=slot,
            design_attempt=0,
            skill="logic",
            document_id="d",
            group="g",
            source="s",
            hint="h",
            proposal=Reference(topic="spade-env-proposed", partition=0, offset=0, id=f"env-{slot}"),
            source_digest="",
            witness_min_return=1.0,
            reward_min=0.0,
        )
        for slot in range(members)
    ]
    return SlotsClosed(run_id="run", event_id=f"slots-{generation}", generation=generation, policy_version=0, members=made)


def make_score(env_id: str, step: int, evicted: str = "") -> EnvScored:
    return EnvScored(
        run_id="run", event_id=f"{env_id}@{step}", env_id=env_id, step=step, generation=step // 2, arms=[], evicted=evicted
    )


class Driver:
    def __init__(self, **overrides: Any) -> None:
        self.join = RolloutJoin("run", small_recipe(**overrides))
        self.offset = -1

    def place(self, record: Record) -> Positioned:
        self.offset += 1
        return Positioned(BY_RECORD[type(record)], 0, self.offset, record)

    def learn(self, *records: Record) -> list[RolloutRequested]:
        outputs = Outputs()
        for record in records:
            outputs.add(self.join.learn(self.place(record)))
        return requests_in(outputs)

    def accept(self, record: Record) -> Outputs:
        return self.join.accept(self.place(record))


def requests_in(outputs: Outputs) -> list[RolloutRequested]:
    return [emit.record for emit in outputs.records if isinstance(emit.record, RolloutRequested)]


def test_step_is_requested_when_its_policy_and_its_slots_are_there() -> None:
    driver = Driver()
    assert driver.accept(make_slots()).records == []
    requested = driver.learn(policy("run", 0))
    assert {request.step for request in requested} == {0, 1}  # lag 1: version 0 plays steps 0 and 1
    assert {request.policy_version for request in requested} == {0}


def test_environments_stay_whole_in_a_unit_and_every_unit_tells_the_groups_size() -> None:
    driver = Driver()
    driver.learn(policy("run", 0))
    first = [request for request in requests_in(driver.accept(make_slots())) if request.step == 0]
    assert [[env.env_id for env in request.environments] for request in first] == [["env-0-0"], ["env-0-1", "env-0-2"]]
    assert all({play.env_id for play in request.plays} == {env.env_id for env in request.environments} for request in first)
    assert first[1].plays_expected == {"env-0-1": 4, "env-0-2": 4}


def test_hint_arm_is_played_at_the_first_step_only_and_on_the_same_seeds() -> None:
    driver = Driver()
    driver.learn(policy("run", 0))
    requested = requests_in(driver.accept(make_slots(members=1)))
    arms = {request.step: [play.arm for play in request.plays] for request in requested}
    assert arms == {0: [PLAIN, PLAIN, HINTED, HINTED], 1: [PLAIN, PLAIN]}
    seeds = {arm: [play.env_seed for play in requested[0].plays if play.arm == arm] for arm in (PLAIN, HINTED)}
    assert seeds[PLAIN] == seeds[HINTED]
    assert len(set(seeds[PLAIN])) == 2
    assert len({play.sampling_seed for request in requested for play in request.plays}) == 6


def test_earlier_policy_plays_both_arms_at_the_first_step_on_the_same_seeds_in_units_of_its_own() -> None:
    driver = Driver(rollout__earlier_plays=2)
    driver.learn(policy("run", 0))
    driver.learn(policy("run", 1))
    requested = requests_in(driver.accept(make_slots(generation=1, members=1)))
    assert [request.step for request in requested] == [2, 2]
    own, check = requested
    assert (own.policy_version, check.policy_version) == (1, 0)
    assert [play.arm for play in check.plays] == [EARLIER_PLAIN, EARLIER_PLAIN, EARLIER_HINTED, EARLIER_HINTED]
    assert {play.env_seed for play in check.plays} == {play.env_seed for play in own.plays}
    assert not {play.play_id for play in check.plays} & {play.play_id for play in own.plays}
    assert own.plays_expected == check.plays_expected == {own.environments[0].env_id: 8}
    assert own.unit_id != check.unit_id


def test_earlier_policy_follows_at_its_distance() -> None:
    driver = Driver(rollout__earlier_plays=2, rollout__earlier_steps=3, schedule__steps=20)
    for version in range(8):
        driver.learn(policy("run", version))
    requested = requests_in(driver.accept(make_slots(generation=4, members=1)))
    assert [(request.step, request.policy_version) for request in requested] == [(8, 7), (8, 4)]


def test_published_plays_every_hint_play_on_a_seed_of_its_own() -> None:
    driver = Driver(algorithm="published", rollout__hint_plays=4)
    driver.learn(policy("run", 0))
    plays = requests_in(driver.accept(make_slots(members=1)))[0].plays
    assert len({play.env_seed for play in plays}) == len(plays) == 6


def test_fewer_seeds_than_plays_are_shared_in_turn() -> None:
    driver = Driver(rollout__plain_plays=4, rollout__seeds=2)
    driver.learn(policy("run", 0))
    plain = [play.env_seed for play in requests_in(driver.accept(make_slots(members=1)))[0].plays if play.arm == PLAIN]
    assert plain[:2] == plain[2:]
    assert plain[0] != plain[1]


def test_evicted_environment_is_left_out_once_the_lag_allows_to_know_it() -> None:
    driver = Driver(schedule={"steps": 12, "interval": 3, "delay": 3, "lag": 1, "lead": 2, "memory_lag": 2})
    driver.learn(policy("run", 0))
    driver.accept(make_slots())
    driver.learn(make_score("env-0-0", 0, "audit"), make_score("env-0-1", 0))
    assert driver.learn(policy("run", 1)) == []  # a score of step 0 that decides about step 2 is missing
    requested = driver.learn(make_score("env-0-2", 0))
    assert [env.env_id for request in requested for env in request.environments] == ["env-0-1", "env-0-2"]
    assert {request.step for request in requested} == {2}


def test_slots_are_held_until_the_last_step_of_the_generation_is_requested() -> None:
    driver = Driver()
    driver.accept(make_slots())
    assert driver.join.learn(driver.place(policy("run", 0))).finished == [("spade-slots-closed", 0, 0)]
    assert driver.accept(make_slots()).finished == [("spade-slots-closed", 0, 2)]  # a copy


def test_generation_without_members_asks_for_nothing_and_is_finished() -> None:
    driver = Driver()
    driver.learn(policy("run", 0))
    outputs = driver.accept(make_slots(members=0))
    assert (outputs.records, len(outputs.finished)) == ([], 1)


def test_generation_after_the_runs_end_is_finished_unplayed() -> None:
    driver = Driver()
    driver.learn(*[policy("run", version) for version in range(8)])
    driver.learn(RunEnding(run_id="run", event_id="ending", last_generation=0, cause="time"))
    outputs = driver.accept(make_slots(generation=1))
    assert (outputs.records, len(outputs.finished)) == ([], 1)


def test_units_that_stand_in_the_log_are_not_requested_again() -> None:
    first = Driver()
    first.learn(policy("run", 0))
    requested = requests_in(first.accept(make_slots()))
    second = Driver()
    second.join.recover([second.place(record) for record in (policy("run", 0), *requested[:2])])
    assert requests_in(second.accept(make_slots())) == requested[2:]


@pytest.mark.parametrize(("members", "parts", "sizes"), [(7, 3, [2, 2, 3]), (2, 4, [1, 1]), (0, 4, [])])
def test_units_are_balanced_and_never_empty(members: int, parts: int, sizes: list[int]) -> None:
    assert [len(part) for part in split_evenly(make_slots(members=members).members, parts)] == sizes
