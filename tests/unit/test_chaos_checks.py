"""The chaos check tells a whole log from one with a loss, a double or a change; its plan repeats; its victims were busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from infra.chaos.evidence import Evidence, content_digest
from infra.chaos.guarantees import Finding, check_log, check_store, compare
from infra.chaos.openwork import DESIGN, KINDS, ROLLOUT, STREAM_BATCH, STREAM_SCORE, TRAIN, VALIDATE, OpenWork
from infra.chaos.plan import EARLIEST, KILL, LATEST, STALL, count_due, make_plan
from infra.chaos.victims import ALL_KINDS, STALL_S
from schemas import ids
from schemas.common import Record
from schemas.run import RunFinished, RunStarted
from schemas.topics import BY_RECORD, Topic
from schemas.train import BatchReady, PolicyPublished, StepFinished
from streams.schedule import Schedule
from tests.streamworld import Shares, World, policy, small_recipe
from workers.memory_rows import TABLES, rows_of

RECIPE = small_recipe()
PLANNED = list(Schedule(RECIPE.schedule).batches())
Log = list[tuple[Topic, int, int, Record]]


@pytest.fixture(scope="module")
def whole() -> Log:
    """The log of a whole run, with what a trainer writes."""
    world = World(RECIPE, Shares(), 0)
    world.run()
    told = dict.fromkeys(("policy_place", "code_digest", "corpus_digest", "tokenizer_digest", "dialect", "recipe_name"), "")
    world.write(RunStarted(run_id="run", event_id="s", recipe_json=RECIPE.model_dump_json(), seed=0, steps=8, **told))  # type: ignore[arg-type]  # fields by name
    for batch in world.records(Topic.BATCH_READY):
        assert isinstance(batch, BatchReady)
        trained = [sample.sample_id for sample in batch.samples]
        world.write(
            StepFinished(run_id="run", event_id=f"step-{batch.step}", step=batch.step, drain=batch.drain, trained=trained)
        )
        if batch.drain:
            world.write(policy("run", batch.step + 1))
    world.write(
        RunFinished(
            run_id="run", event_id="f", steps=8, drain_steps=1, final_version=PLANNED[-1] + 1, final_digest="digest",
            agent_samples=0, designer_samples=0, cause="done",
        )
    )  # fmt: skip
    return [
        (topic, partition, offset, record)
        for (topic, partition), records in world.log.items()
        for offset, record in enumerate(records)
    ]


def gather(log: Log) -> Evidence:
    evidence = Evidence("run")
    for entry in log:
        evidence.take(*entry)
    return evidence


def broken(log: Log) -> list[str]:
    return [f"{one.name}: {one.told}" for one in check_log(gather(log), RECIPE, PLANNED) if not one.holds]


def with_more(log: Log, *records: Record) -> Log:
    return [*log, *[(BY_RECORD[type(record)], 0, 10_000 + n, record) for n, record in enumerate(records)]]


def some(log: Log, topic: Topic, skip: int = 0) -> Any:
    return [record for held, _, _, record in log if held is topic][skip]


def without(log: Log, topic: Topic) -> Log:
    gone = some(log, topic, 1)
    return [entry for entry in log if entry[3] is not gone]


def test_a_whole_log_holds_and_its_copies_change_nothing(whole: Log) -> None:
    assert broken(whole) == []
    copies = [msgspec.structs.replace(record, created_at=99.0, tries=1) for topic in Topic for record in first_of(whole, topic)]
    assert broken(with_more(whole, *copies)) == []
    assert (
        check_log(gather(with_more(whole, *copies)), RECIPE, PLANNED)[-1].told
        == f"{len(copies)} copies, all equal to their first"
    )


def first_of(log: Log, topic: Topic) -> Iterator[Record]:
    yield from [record for held, _, _, record in log if held is topic][:1]


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        (Topic.BATCH_READY, "each planned batch is there once: missing 1"),
        (Topic.STEP_FINISHED, "each planned sample is trained once: batches without a step: 1"),
        (Topic.ENV_SCORED, "each episode is scored once: 1 never"),
        (Topic.ROLLOUT_FINISHED, "everything asked for is answered: 1 plays not ended"),
        (Topic.ENV_PROPOSED, "everything asked for is answered: 1 designs not written"),
        (Topic.AUDIT_FINISHED, "everything asked for is answered: 1 audits not ended"),
        (Topic.POLICY_PUBLISHED, "each policy version has one digest: missing"),
    ],
)
def test_a_lost_record_is_told(whole: Log, topic: Topic, told: str) -> None:
    found = broken(without(whole, topic))
    assert any(line.startswith(told) for line in found), found


def test_a_sample_trained_by_two_steps_is_told(whole: Log) -> None:
    sample = some(whole, Topic.BATCH_READY).samples[0].sample_id
    log = [
        (topic, partition, offset, again(record, sample) if topic is Topic.STEP_FINISHED and offset == 1 else record)
        for topic, partition, offset, record in whole
    ]
    assert broken(log) == [f"each planned sample is trained once: 1 twice: {sample}"]


def again(record: Record, sample: str) -> Record:
    assert isinstance(record, StepFinished)
    return msgspec.structs.replace(record, trained=[*record.trained, sample])


def test_a_second_score_of_other_plays_and_a_second_batch_are_told(whole: Log) -> None:
    score = msgspec.structs.replace(some(whole, Topic.ENV_SCORED), event_id="other")
    batch = msgspec.structs.replace(some(whole, Topic.BATCH_READY), event_id="other")
    found = broken(with_more(whole, score, batch))
    assert "each planned batch is there once: written anew 0" in found
    assert any("environments scored anew" in line for line in found)


def test_a_copy_that_differs_is_told_with_its_place(whole: Log) -> None:
    changed = msgspec.structs.replace(some(whole, Topic.ENV_SCORED), regret=0.77)
    assert any(
        "copies change nothing: 1 of 1 differ: spade-env-scored:0:10000" in line for line in broken(with_more(whole, changed))
    )


def test_a_sample_older_than_its_bound_is_told(whole: Log) -> None:
    def aged(record: Record) -> Record:
        assert isinstance(record, BatchReady)
        old = [msgspec.structs.replace(record.samples[0], lag=2, policy_version=record.step - 2), *record.samples[1:]]
        return msgspec.structs.replace(record, samples=old)

    log = [
        (topic, partition, offset, aged(record) if isinstance(record, BatchReady) and record.step == 3 else record)
        for topic, partition, offset, record in whole
    ]
    assert any(line.startswith("no sample is older than its bound: 1 are") for line in broken(log))


def test_two_digests_of_one_version_and_a_run_without_an_end_are_told(whole: Log) -> None:
    other = msgspec.structs.replace(some(whole, Topic.POLICY_PUBLISHED, 2), digest="other", event_id="other")
    assert any("two digests" in line for line in broken(with_more(whole, other)))
    assert "the run has finished: the log holds no run-finished record" in broken(
        [entry for entry in whole if entry[0] is not Topic.RUN_FINISHED]
    )


def test_skipped_steps_train_nothing_and_break_nothing(whole: Log) -> None:
    def skip(record: Record) -> Record:
        return msgspec.structs.replace(record, skipped="loss", trained=[]) if isinstance(record, StepFinished) else record

    assert broken([(topic, part, offset, skip(record)) for topic, part, offset, record in whole]) == []


def test_records_of_other_runs_are_passed_over(whole: Log) -> None:
    other = msgspec.structs.replace(some(whole, Topic.BATCH_READY), run_id="another", step=77)
    assert broken(with_more(whole, other)) == []


def test_the_same_run_twice_is_equal_and_other_weights_or_samples_are_told(whole: Log) -> None:
    calm = gather(whole)
    assert all(finding.holds for finding in compare(gather(whole), calm))
    ended = msgspec.structs.replace(some(whole, Topic.RUN_FINISHED), final_digest="elsewhere")
    other = gather(
        [(topic, part, off, ended if isinstance(record, RunFinished) else record) for topic, part, off, record in whole]
    )
    assert [finding.holds for finding in compare(other, calm)] == [True, False]
    assert [finding.holds for finding in compare(gather(without(whole, Topic.STEP_FINISHED)), calm)] == [False, True]


def stored(log: Log) -> tuple[dict[str, dict[str, tuple[int, int]]], int]:
    """What the memory sink would hold of a log, the lowest copy of each key."""
    tables: dict[str, dict[str, tuple[int, int]]] = {}
    rewards = 0
    for topic, partition, offset, record in log:
        for table, row in rows_of(topic, record, partition, offset):
            rewards += table == "rewards"
            if table == TABLES[topic][-1]:
                tables.setdefault(table, {}).setdefault(row["event_id"], (partition, offset))
    return tables, rewards


def test_a_store_that_lacks_a_row_has_one_too_many_or_one_of_a_copy_is_told(whole: Log) -> None:
    def check(change: Callable[[dict[str, dict[str, tuple[int, int]]]], None], more: int = 0) -> Finding:
        tables, rewards = stored(whole)
        change(tables)
        return check_store(gather(whole), TABLES, tables, rewards + more)

    assert check(lambda tables: None).holds
    assert check(lambda tables: None, more=1).told.startswith("rewards: ")
    assert check(lambda tables: tables["scores"].popitem() and None).told == "scores: 1 missing"
    assert check(lambda tables: tables["steps"].update(x=(0, 0))).told == "steps: 1 too many"
    first = next(iter(stored(whole)[0]["episodes"]))
    assert check(lambda tables: tables["episodes"].update({first: (0, 9999)})).told == "episodes: 1 not from the first copy"


def test_what_decides_is_in_the_digest_and_clocks_and_places_are_not(whole: Log) -> None:
    batch = some(whole, Topic.BATCH_READY)
    assert content_digest(batch) == content_digest(msgspec.structs.replace(batch, created_at=3.0, tries=2))
    assert content_digest(batch) != content_digest(msgspec.structs.replace(batch, lost=batch.lost + 1))
    moved = msgspec.structs.replace(batch.samples[0].reference, offset=77)
    samples = [msgspec.structs.replace(batch.samples[0], reference=moved), *batch.samples[1:]]
    assert content_digest(batch) == content_digest(msgspec.structs.replace(batch, samples=samples))
    published = some(whole, Topic.POLICY_PUBLISHED)
    assert isinstance(published, PolicyPublished)
    assert content_digest(published) == content_digest(msgspec.structs.replace(published, place="elsewhere"))


def test_a_plan_is_the_same_for_its_seed_strikes_every_kind_and_stalls_only_what_has_a_session() -> None:
    plan = make_plan(ALL_KINDS, tuple(STALL_S), 50, seed=3)
    assert plan == make_plan(ALL_KINDS, tuple(STALL_S), 50, seed=3) != make_plan(ALL_KINDS, tuple(STALL_S), 50, seed=4)
    assert {blow.kind for blow in plan[: len(ALL_KINDS)]} == set(ALL_KINDS)
    assert [blow.share for blow in plan] == sorted(blow.share for blow in plan)
    assert all(EARLIEST <= blow.share <= LATEST for blow in plan)
    assert {blow.how for blow in plan} == {KILL, STALL}
    assert all(blow.kind in STALL_S for blow in plan if blow.how == STALL)
    assert len(make_plan(["train"], [], 3, seed=0)) == 3
    assert [count_due(plan, share) for share in (0.0, plan[0].share, plan[7].share, 1.0)] == [0, 1, 8, 50]
    assert count_due(plan[8:], plan[7].share) == 0


def test_open_work_is_what_was_asked_and_not_answered_whatever_came_first(whole: Log) -> None:
    for log in (whole, whole[::-1]):
        work = OpenWork(RECIPE.schedule)
        for _, _, _, record in log:
            work.take(record)
        assert {kind: work.open(kind) for kind in KINDS} == {kind: [] for kind in KINDS}
        assert not work.any_open()
    work = OpenWork(RECIPE.schedule)
    asked = some(whole, Topic.DESIGN_REQUESTED)
    work.take(asked)
    assert len(work.open(DESIGN)) == len(asked.slots)
    work.take(next(one for one in first_of(whole, Topic.ENV_PROPOSED)))
    assert (len(work.open(VALIDATE)), work.answers[DESIGN]) == (1, 1)
    work.take(some(whole, Topic.ROLLOUT_REQUESTED))
    finished = some(whole, Topic.ROLLOUT_FINISHED)
    work.take(finished)
    assert work.open(STREAM_SCORE) == [(finished.env_id, finished.step)]
    assert (finished.play_id,) not in work.open(ROLLOUT)
    work.take(some(whole, Topic.ENV_SCORED))
    assert work.open(STREAM_BATCH)
    work.take(some(whole, Topic.BATCH_READY))
    assert work.open(TRAIN) == [(0,)]
    assert ids.event_id("batch", "run", 0) == some(whole, Topic.BATCH_READY).event_id
