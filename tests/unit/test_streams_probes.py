"""Probe plays: older environments played again by the present policy, both arms, untrained, from the design request to memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from infra.selection import Candidate, choose_probes
from schemas.common import Record, Reference
from schemas.design import DesignRequested, EnvProposed, Member, Probe, SlotsClosed
from schemas.rollout import PLAIN, PROBE_HINTED, PROBE_PLAIN, AuditRequested, RolloutFinished, RolloutRequested
from schemas.score import ArmScore, EnvScored, GenerationClosed
from schemas.settings import MemorySettings, Recipe
from schemas.topics import BY_RECORD, Topic
from schemas.train import BatchReady
from streams.batch import BatchJoin
from streams.design import DesignJoin
from streams.rollout import RolloutJoin
from streams.score import ScoreJoin
from streams.slots import count_blocks
from streams.stage import Join, Positioned
from tests.streamworld import DOCUMENTS, Shares, World, answer, policy, small_recipe
from workers.memory_rows import rows_of

K1 = {"steps": 6, "interval": 1, "delay": 1, "lag": 1, "lead": 1, "memory_lag": 2}


def probing(**overrides: Any) -> Recipe:
    """One step a generation, two environments played again in two plays an arm."""
    return small_recipe(
        schedule=K1,
        memory__enabled=True,
        memory__probe_environments=2,
        memory__probe_plays=2,
        **{"rollout__audit_share": 0.0} | overrides,
    )


class Driver:
    """Feeds a join with consecutive offsets."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.offset = -1

    def place(self, record: Record) -> Positioned:
        self.offset += 1
        return Positioned(BY_RECORD[type(record)], 0, self.offset, record)

    def learn(self, *records: Record) -> list[Any]:
        return [emit.record for record in records for emit in self.join.learn(self.place(record)).records]

    def accept(self, *records: Record) -> list[Any]:
        return [emit.record for record in records for emit in self.join.accept(self.place(record)).records]


def member(env_id: str, slot: int = 0) -> Member:
    return Member(
        env_id=env_id, slot=slot, design_attempt=0, skill="logic", document_id="d", group="g", source=f"source of {env_id}",
        hint="count", proposal=Reference(topic="spade-env-proposed", partition=0, offset=0, id=env_id), source_digest="",
        witness_min_return=1.0, reward_min=0.0,
    )  # fmt: skip


def slots(generation: int, *members: str, probes: tuple[str, ...] = ()) -> SlotsClosed:
    return SlotsClosed(
        run_id="run", event_id=f"slots-{generation}", generation=generation, policy_version=0,
        members=[member(env_id, slot) for slot, env_id in enumerate(members)],
        probes=[Probe(generation=0, member=member(env_id)) for env_id in probes],
    )  # fmt: skip


def play(env_id: str, arm: str, index: int, value: float, **changes: Any) -> RolloutFinished:
    values: dict[str, Any] = {
        "run_id": "run", "event_id": f"{env_id}/{arm}/{index}", "play_id": f"{env_id}/{arm}/{index}", "unit_id": "u",
        "env_id": env_id, "step": 2, "generation": 2, "arm": arm, "index": index, "env_seed": index, "plays_expected": 4,
        "episode_return": value, "won": value > 0.5, "terminated": True,
    }  # fmt: skip
    return RolloutFinished(**values | changes)


def probe_plays(env_id: str = "old", **changes: Any) -> list[RolloutFinished]:
    """The hint helps on one of two seeds."""
    values = {PROBE_PLAIN: (0.0, 1.0), PROBE_HINTED: (1.0, 1.0)}
    return [play(env_id, arm, index, own[index], **changes) for arm, own in values.items() for index in range(2)]


# --- which, and where it is written ------------------------------------------------------------------------------------------


def test_the_longest_unmeasured_of_the_best_and_of_the_too_hard_are_wanted_first() -> None:
    def candidate(env_id: str, kind: str, measured: int) -> Candidate:
        return Candidate(env_id, kind, generation=0, win_rate=0.5, regret=0.1, measured=measured)

    logic = [candidate("b", "best", 3), candidate("a", "best", 3), candidate("beyond the top", "best", 0)]
    maths = [candidate("hard", "hard", 1), candidate("easy", "easy", 0), candidate("new", "best", 5)]
    settings = MemorySettings(top=2)
    assert list(choose_probes([logic, maths], settings, 9)) == ["hard", "a", "b", "new"]
    assert choose_probes([maths, logic], settings, 2) == {"hard": 0, "a": 0}


def open_generation(join: DesignJoin, generation: int, probes: dict[str, int]) -> list[DesignRequested]:
    memory: list[list[Any]] = [[] for _ in range(count_blocks(join.recipe))]
    outputs = join.open(generation, memory, time_is_up=False, probes=probes)
    return [emit.record for emit in outputs.records if isinstance(emit.record, DesignRequested)]


def close_slots_of(driver: Driver, requests: list[DesignRequested]) -> tuple[list[Record], SlotsClosed]:
    verdicts = [one for request in requests for one in answer(request, Shares(invalid=0.0)) if not isinstance(one, EnvProposed)]
    (closed,) = driver.accept(*verdicts)
    assert isinstance(closed, SlotsClosed)
    return verdicts, closed


def test_a_generation_names_its_probes_once_and_closes_with_them_in_full_also_after_a_restart() -> None:
    recipe = probing()
    join = DesignJoin("run", recipe, DOCUMENTS)
    driver = Driver(join)
    driver.learn(*(policy("run", version) for version in range(5)))
    first = open_generation(join, 0, {})
    _, closed = close_slots_of(driver, first)
    old = [one.env_id for one in closed.members]
    open_generation(join, 1, {})
    second = open_generation(join, 2, dict.fromkeys(old[:4], 0))
    assert [request.probes for request in second] == [dict.fromkeys(old[:2], 0), {}]
    third = open_generation(join, 3, dict.fromkeys(old[:4], 0))  # what generation 2 measures is not known yet
    assert third[0].probes == dict.fromkeys(old[2:4], 0)
    again = DesignJoin("run", recipe, DOCUMENTS)
    restarted = Driver(again)
    again.recover([restarted.place(record) for record in (policy("run", 0), closed, *first, *second)])
    for one in (driver, restarted):
        _, later = close_slots_of(one, second)
        assert [(probe.generation, probe.member) for probe in later.probes] == [(0, one) for one in closed.members[:2]]


# --- plays and scores ----------------------------------------------------------------------------------------------------------


def test_both_arms_of_what_is_probed_are_asked_for_at_the_first_step_by_the_playing_policy() -> None:
    driver = Driver(RolloutJoin("run", small_recipe(memory__probe_environments=1, memory__probe_plays=3)))
    requested = [
        record
        for record in driver.learn(*(policy("run", version) for version in range(3)))
        + driver.accept(slots(1, "new", probes=("old",)))
        if isinstance(record, RolloutRequested)
    ]
    old = {
        record.step: [one for one in record.plays if one.env_id == "old"]
        for record in requested
        if "old" in record.plays_expected
    }
    assert {step: len(plays) for step, plays in old.items()} == {2: 6}  # K = 2: not at step 3
    plain, hinted = ([one for one in old[2] if one.arm == arm] for arm in (PROBE_PLAIN, PROBE_HINTED))
    assert [one.env_seed for one in plain] == [one.env_seed for one in hinted]
    assert {record.policy_version for record in requested if record.step == 2} == {1}
    unit = next(record for record in requested if "old" in record.plays_expected)
    assert unit.plays_expected["old"] == 6
    assert next(one for one in unit.environments if one.env_id == "old").source == "source of old"
    assert all(one.arm not in (PROBE_PLAIN, PROBE_HINTED) for record in requested for one in record.plays if one.env_id == "new")


@pytest.mark.parametrize("algorithm", ["mended", "published"])
def test_probe_plays_are_scored_as_such_paired_under_either_algorithm(algorithm: str) -> None:
    driver = Driver(ScoreJoin("run", probing(algorithm=algorithm)))
    (scored,) = driver.accept(*probe_plays())
    assert isinstance(scored, EnvScored)
    assert (scored.probe, scored.env_id, scored.step, scored.generation) == (True, "old", 2, 2)
    assert (scored.regret, scored.pairs) == (0.5, 2)
    assert [arm.arm for arm in scored.arms] == [PROBE_PLAIN, PROBE_HINTED]
    (row,) = [row for table, row in rows_of(Topic.ENV_SCORED, scored, 0, 0) if table == "scores"]
    assert (row["probe"], row["plain_plays"], row["hint_win_rate"]) == (True, 2, 1.0)


def test_lost_probe_play_takes_its_partner_with_it_and_copies_count_once() -> None:
    driver = Driver(ScoreJoin("run", probing()))
    plays = probe_plays()
    plays[0] = msgspec.structs.replace(plays[0], lost="worker died")
    assert driver.accept(plays[0], plays[0], *plays[1:3]) == []
    (scored,) = driver.accept(plays[3])
    assert (scored.lost, scored.dropped, scored.pairs) == (1, 1, 1)
    assert driver.accept(*plays) == []


def test_probe_plays_are_audited_with_the_source_that_the_slots_hold() -> None:
    driver = Driver(ScoreJoin("run", probing(rollout__audit_share=1.0)))
    driver.learn(slots(2, "new", probes=("old",)))
    audits = driver.accept(*probe_plays())
    assert [one.source for one in audits if isinstance(one, AuditRequested)] == ["source of old"] * 4


# --- closing, batches, memory --------------------------------------------------------------------------------------------------


def scored(env_id: str, step: int, arms: tuple[str, str], **changes: Any) -> EnvScored:
    place = Reference(topic="spade-rollout-finished", partition=0, offset=0, id="x")
    made = []
    for arm, won in zip(arms, (0.5, 1.0), strict=True):
        plays = [
            {
                "play_id": f"{env_id}/{step}/{arm}/{index}",
                "index": index,
                "episode_return": value,
                "won": value > 0.5,
                "reference": place,
            }
            for index, value in enumerate((1.0, 2 * won - 1.0))
        ]
        made.append(msgspec.convert({"arm": arm, "plays": plays, "mean": won, "win_rate": won}, ArmScore, from_attributes=True))
    values: dict[str, Any] = {
        "run_id": "run", "event_id": f"{env_id}@{step}", "env_id": env_id, "step": step, "generation": step, "arms": made,
        "regret": 0.5, "regret_se": 0.5, "pairs": 2, "probe": arms[0] == PROBE_PLAIN,
    }  # fmt: skip
    return EnvScored(**values | changes)


def batch_driver() -> Driver:
    """Generations 0 and 1 are done; generation 2 plays `old` again."""
    driver = Driver(BatchJoin("run", probing()))
    driver.learn(slots(0, "old"), slots(1), slots(2, "new", probes=("old",)))
    driver.accept(scored("old", 0, (PLAIN, "hint")))
    return driver


def test_generation_closes_only_when_its_probe_plays_are_scored_and_the_batch_does_not_wait_or_hold_them() -> None:
    driver = batch_driver()
    (batch,) = driver.accept(scored("new", 2, (PLAIN, "hint")))
    assert isinstance(batch, BatchReady)
    assert {sample.sample_id.split("/")[0] for sample in batch.samples if sample.role == "agent"} == {"new"}
    (closed,) = driver.accept(scored("old", 2, (PROBE_PLAIN, PROBE_HINTED)))
    assert isinstance(closed, GenerationClosed)
    assert [design.env_id for design in closed.designs] == ["new"]
    (probe,) = closed.probes
    assert (probe.env_id, probe.generation, probe.plays, probe.win_rate, probe.hint_win_rate) == ("old", 0, 4, 0.5, 1.0)
    assert (probe.w, probe.regret, probe.reward) == (0.5, 0.5, closed.designs[0].reward)


def test_memory_measures_what_was_probed_under_the_generation_that_played_it() -> None:
    driver = batch_driver()
    driver.accept(scored("new", 2, (PLAIN, "hint")))
    (closed,) = driver.accept(scored("old", 2, (PROBE_PLAIN, PROBE_HINTED)))
    standings = [row for table, row in rows_of(Topic.GENERATION_CLOSED, closed, 0, 0) if table == "standings"]
    assert [(row["env_id"], row["generation"], row["measured"]) for row in standings] == [("new", 2, 2), ("old", 0, 2)]
    nothing = msgspec.structs.replace(closed, probes=[msgspec.structs.replace(closed.probes[0], plays=0)])
    assert [row["env_id"] for table, row in rows_of(Topic.GENERATION_CLOSED, nothing, 0, 0) if table == "standings"] == ["new"]


def test_what_probe_plays_evict_stays_trained_and_is_told_to_memory() -> None:
    driver = batch_driver()
    driver.accept(scored("new", 2, (PLAIN, "hint")))
    (closed,) = driver.accept(scored("old", 2, (PROBE_PLAIN, PROBE_HINTED), evicted="audit: differs"))
    (probe,) = closed.probes
    assert (probe.evicted, probe.reward) == ("audit: differs", 0.0)
    assert [design.evicted for design in closed.designs] == [""]


def test_a_whole_run_probes_older_environments_trains_none_of_it_and_acknowledges_every_input() -> None:
    world = World(probing(), Shares(), 3)
    world.run()
    closed = [record for record in world.records(Topic.GENERATION_CLOSED) if isinstance(record, GenerationClosed)]
    probed = [(one.generation, probe) for one in closed for probe in one.probes]
    assert len(probed) >= 4
    assert all(probe.generation <= generation - 2 for generation, probe in probed)
    under_way = [{probe.env_id for generation, probe in probed if generation in (own, own + 1)} for own in (2, 3, 4)]
    assert all(len(names) == 4 for names in under_way)
    plays = [record for record in world.records(Topic.ROLLOUT_FINISHED) if isinstance(record, RolloutFinished)]
    probe_ids = {one.play_id for one in plays if one.arm in (PROBE_PLAIN, PROBE_HINTED)}
    assert len(probe_ids) == 4 * len(probed)
    batches = [record for record in world.records(Topic.BATCH_READY) if isinstance(record, BatchReady)]
    assert not probe_ids & {sample.sample_id for batch in batches for sample in batch.samples}
    assert world.unread() == []
