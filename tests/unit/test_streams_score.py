"""The score stage: when a group closes, what counts in it, what evicts."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.common import Record, Reference, pack_ints
from schemas.design import Member, SlotsClosed
from schemas.rollout import EARLIER_HINTED, EARLIER_PLAIN, HINTED, PLAIN, AuditFinished, AuditRequested, RolloutFinished
from schemas.score import EnvScored
from schemas.topics import BY_RECORD
from streams.score import ScoreJoin
from streams.stage import Outputs, Positioned
from tests.streamworld import small_recipe


def make_play(arm: str, index: int, value: float = 0.0, **changes: Any) -> RolloutFinished:
    values: dict[str, Any] = {
        "run_id": "run",
        "event_id": f"{arm}-{index}",
        "play_id": f"{arm}-{index}",
        "unit_id": "unit",
        "env_id": "env",
        "step": 0,
        "generation": 0,
        "arm": arm,
        "index": index,
        "env_seed": 100 + index,
        "plays_expected": 4,
        "tokens": pack_ints([1, 2, 3]),
        "episode_return": value,
        "won": value > 0.5,
        "terminated": True,
    }
    return RolloutFinished(**values | changes)


def make_slots() -> SlotsClosed:
    member = Member(
        env_id="env",
        slot=0,
        design_attempt=0,
        skill="logic",
        document_id="d",
        group="g",
        source="the source",
        hint="",
        proposal=Reference(topic="spade-env-proposed", partition=0, offset=0, id="env"),
        source_digest="",
        witness_min_return=1.0,
        reward_min=0.0,
    )
    return SlotsClosed(run_id="run", event_id="slots", generation=0, policy_version=0, members=[member])


class Driver:
    """Feeds a join with consecutive offsets."""

    def __init__(self, **overrides: Any) -> None:
        self.join = ScoreJoin("run", small_recipe(**{"rollout__audit_share": 0.0} | overrides))
        self.offset = -1

    def place(self, record: Record) -> Positioned:
        self.offset += 1
        return Positioned(BY_RECORD[type(record)], 3, self.offset, record)

    def accept(self, *records: Record) -> Outputs:
        outputs = Outputs()
        for record in records:
            outputs.add(self.join.accept(self.place(record)))
        return outputs


def scored(outputs: Outputs) -> EnvScored:
    (record,) = [emit.record for emit in outputs.records if isinstance(emit.record, EnvScored)]
    return record


def all_plays(**lost_or_value: Any) -> list[RolloutFinished]:
    values = {"hint-0": 1.0, "hint-1": 1.0, "plain-0": 0.0, "plain-1": 1.0}
    plays = []
    for name, value in values.items():
        arm, index = name.split("-")
        change = lost_or_value.get(name.replace("-", "_"), {})
        plays.append(make_play(HINTED if arm == "hint" else PLAIN, int(index), value, **change))
    return plays


def test_group_closes_at_the_last_play_and_frees_all_its_inputs() -> None:
    driver = Driver()
    plays = all_plays()
    assert driver.accept(*plays[:3]) == Outputs()
    outputs = driver.accept(plays[3])
    assert [offset for _, _, offset in outputs.finished] == [0, 1, 2, 3]
    record = scored(outputs)
    assert (record.regret, record.pairs, record.lost, record.dropped, record.evicted) == (0.5, 2, 0, 0, "")
    assert record.regret_se == pytest.approx((0.5 / 2) ** 0.5)
    assert [(arm.arm, arm.mean, arm.win_rate) for arm in record.arms] == [(PLAIN, 0.5, 0.5), (HINTED, 1.0, 1.0)]


def test_order_of_arrival_changes_nothing_but_places() -> None:
    plays = all_plays()
    forward, backward = scored(Driver().accept(*plays)), scored(Driver().accept(*plays[::-1]))
    assert [[p.play_id for p in arm.plays] for arm in forward.arms] == [[p.play_id for p in arm.plays] for arm in backward.arms]
    assert (forward.event_id, forward.regret, forward.regret_se) == (backward.event_id, backward.regret, backward.regret_se)


def test_references_point_to_where_the_plays_stand() -> None:
    record = scored(Driver().accept(*all_plays()))
    places = {play.play_id: (play.reference.offset, play.reference.partition, play.reference.id) for play in record.arms[0].plays}
    assert places == {"plain-0": (2, 3, "plain-0"), "plain-1": (3, 3, "plain-1")}


def test_lost_play_takes_its_partner_with_it_and_is_never_scored() -> None:
    record = scored(Driver().accept(*all_plays(plain_0={"lost": "worker died", "episode_return": 0.0})))
    assert (record.lost, record.dropped, record.pairs) == (1, 1, 1)
    assert {arm.arm: [play.play_id for play in arm.plays] for arm in record.arms} == {PLAIN: ["plain-1"], HINTED: ["hint-1"]}
    assert record.regret == 0.0


def test_lost_play_drops_nothing_where_there_is_no_other_arm() -> None:
    plays = [make_play(PLAIN, index, 1.0, plays_expected=2, step=1, lost="oom" if index else "") for index in range(2)]
    record = scored(Driver().accept(*plays))
    assert (record.lost, record.dropped) == (1, 0)
    assert [play.play_id for play in record.arms[0].plays] == ["plain-0"]


def checks(**changes: dict[str, Any]) -> list[RolloutFinished]:
    """Both arms of an earlier policy, two seeds each; the hint helps it on both."""
    return [
        make_play(arm, index, value, plays_expected=8, **changes.get(f"{arm}_{index}".replace("-", "_"), {}))
        for arm, value in ((EARLIER_PLAIN, 0.0), (EARLIER_HINTED, 1.0))
        for index in range(2)
    ]


@pytest.mark.parametrize("algorithm", ["mended", "published"])
def test_earlier_policys_arms_are_scored_apart_from_the_playing_policys(algorithm: str) -> None:
    driver = Driver(algorithm=algorithm, rollout__earlier_plays=2, rollout__hint_plays=2)
    own = [make_play(arm, index, 1.0, plays_expected=8) for arm in (PLAIN, HINTED) for index in range(2)]
    assert driver.accept(*own).records == []
    record = scored(driver.accept(*checks()))
    assert [arm.arm for arm in record.arms] == [PLAIN, HINTED, EARLIER_PLAIN, EARLIER_HINTED]
    assert (record.regret, record.earlier_regret, record.earlier_pairs) == (0.0, 1.0, 2)


def test_lost_play_of_the_earlier_policy_takes_only_its_own_partner_with_it() -> None:
    driver = Driver(rollout__earlier_plays=2)
    own = [make_play(arm, index, 1.0, plays_expected=8) for arm in (PLAIN, HINTED) for index in range(2)]
    record = scored(driver.accept(*own, *checks(earlier_plain_0={"lost": "worker died"})))
    assert (record.pairs, record.earlier_pairs, record.lost, record.dropped) == (2, 1, 1, 1)


def test_published_counts_a_lost_hint_play_as_zero_and_never_trains_it() -> None:
    driver = Driver(algorithm="published", rollout__hint_plays=2)
    record = scored(driver.accept(*all_plays(hint_0={"lost": "worker died"}, plain_0={"lost": "worker died"})))
    plain, hinted = record.arms
    assert (plain.mean, [play.play_id for play in plain.plays]) == (1.0, ["plain-1"])
    assert (hinted.mean, [play.play_id for play in hinted.plays]) == (0.5, ["hint-1"])
    assert record.regret == -0.5


def test_all_plays_lost_still_close_the_group() -> None:
    lost = {"lost": "sampler gone"}
    record = scored(Driver().accept(*all_plays(hint_0=lost, hint_1=lost, plain_0=lost, plain_1=lost)))
    assert (record.lost, record.pairs, record.regret) == (4, 0, 0.0)
    assert [arm.plays for arm in record.arms] == [[], []]


@pytest.mark.parametrize(
    "broken", [{"episode_return": float("nan")}, {"episode_return": float("inf")}, {"end_reason": "non_finite"}]
)
def test_return_that_is_no_number_evicts_and_never_counts(broken: dict[str, Any]) -> None:
    record = scored(Driver().accept(*all_plays(plain_1=broken)))
    assert record.evicted == "non_finite: play plain-1"
    assert [play.play_id for play in record.arms[0].plays] == ["plain-0"]


def audit(play: RolloutFinished, *, equal: bool, lost: str = "") -> AuditFinished:
    return AuditFinished(
        run_id="run",
        event_id=f"audit-{play.play_id}",
        play_id=play.play_id,
        env_id="env",
        step=0,
        generation=0,
        equal=equal,
        difference="" if equal else "turn 2",
        lost=lost,
    )


def test_audited_group_waits_for_its_audits_and_a_mismatch_evicts() -> None:
    driver = Driver(rollout__audit_share=1.0)
    driver.join.recover([driver.place(make_slots())])
    plays = all_plays()
    asked = driver.accept(*plays)
    requests = [emit.record for emit in asked.records]
    assert all(isinstance(request, AuditRequested) and request.source == "the source" for request in requests)
    assert len(requests) == 4
    assert asked.finished == []
    assert driver.accept(*[audit(play, equal=True) for play in plays[:3]]) == Outputs()
    closed = driver.accept(audit(plays[3], equal=False))
    assert scored(closed).evicted == "audit: play plain-1 differs: turn 2"
    assert len(closed.finished) == 8


def test_audit_waits_for_the_source_and_a_lost_audit_decides_nothing() -> None:
    driver = Driver(rollout__audit_share=1.0)
    plays = all_plays(plain_0={"lost": "oom"})
    assert driver.accept(*plays).records == []
    asked = driver.join.learn(driver.place(make_slots()))
    assert len(asked.records) == 3  # a lost play is not audited
    closed = driver.accept(*[audit(play, equal=False, lost="jail gone") for play in plays if not play.lost])
    assert scored(closed).evicted == ""


def test_copies_are_finished_at_once_and_the_first_counts() -> None:
    driver = Driver()
    plays = all_plays()
    driver.accept(*plays[:2])
    copy = make_play(HINTED, 0, 0.0)
    assert [offset for *_, offset in driver.accept(copy).finished] == [2]
    record = scored(driver.accept(*plays[2:]))
    assert record.arms[1].mean == 1.0
    assert [offset for *_, offset in driver.accept(*plays).finished] == [5, 6, 7, 8]


def test_tail_of_a_group_that_closed_before_the_restart_is_finished_at_once() -> None:
    first = Driver()
    record = scored(first.accept(*all_plays()))
    second = Driver()
    second.join.recover([second.place(record)])
    assert len(second.accept(*all_plays()[2:]).finished) == 2
