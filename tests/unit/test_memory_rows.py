"""Every record becomes rows of its table's own columns, the lower of two copies counts, and tokens stay in the log."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from infra.migrate import FOLDER
from schemas.common import Record, Reference, SamplingSettings, Span, VersionSpan, pack_ints
from schemas.rollout import RolloutFinished, Turn
from schemas.topics import Topic
from schemas.train import BatchReady, Sample
from workers.memory_rows import LAST_VERSION, TABLES, rows_of

OneOfEach = Callable[[str], list[tuple[Topic, Record]]]


def columns() -> dict[str, set[str]]:
    """Table -> column names, read from the migrations."""
    found = {}
    for path in sorted(FOLDER.glob("*.up.sql")):
        for name, body in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)\n\(\n(.*?)\n\)\n", path.read_text(), re.DOTALL):
            found[name] = set(re.findall(r"^    (\w+) ", body, re.MULTILINE))
        for name, body in re.findall(r"ALTER TABLE (\w+)(.*?);", path.read_text(), re.DOTALL):
            found[name] |= set(re.findall(r"ADD COLUMN IF NOT EXISTS (\w+) ", body))
    return found


@pytest.mark.parametrize("topic", list(Topic), ids=lambda topic: topic.wire)
def test_a_record_fills_exactly_the_columns_of_its_tables(topic: Topic, one_of_each: OneOfEach) -> None:
    record = dict(one_of_each("r"))[topic]
    rows = rows_of(topic, record, partition=4, offset=9)
    assert tuple(dict.fromkeys(table for table, _ in rows)) == TABLES[topic]
    for table, row in rows:
        assert set(row) == columns()[table]
        assert (row["run_id"], row["_topic"], row["_partition"], row["_offset"]) == ("r", topic.wire, 4, 9)


def test_of_two_copies_the_one_that_stands_lower_has_the_higher_version(one_of_each: OneOfEach) -> None:
    record = dict(one_of_each("r"))[Topic.RUN_ENDING]
    (_, low), (_, high) = (rows_of(Topic.RUN_ENDING, record, 0, offset)[0] for offset in (3, 8))
    assert low["_version"] > high["_version"]
    assert low["_version"] == LAST_VERSION - 3


def test_an_episode_keeps_its_texts_and_counts_its_tokens() -> None:
    span = Span(start=1, end=3, policy_version=5, policy_digest="d", settings=SamplingSettings())
    turn = Turn(observation="see", action="do", reward=0.5, action_start=1, action_end=3)
    episode = RolloutFinished(
        run_id="r", event_id="e", play_id="p", unit_id="u", env_id="v", step=1, generation=1, arm="plain", index=2, env_seed=7,
        plays_expected=8, tokens=pack_ints([1, 2, 3, 4]), spans=[span], turns=[turn],
    )  # fmt: skip
    ((table, row),) = rows_of(Topic.ROLLOUT_FINISHED, episode, 0, 0)
    assert table == "episodes"
    assert (row["observations"], row["actions"], row["rewards"]) == (["see"], ["do"], [0.5])
    assert (row["tokens"], row["sampled_tokens"], row["policy_version"], row["play_index"]) == (4, 2, 5, 2)


def test_a_batch_keeps_the_age_of_every_sample() -> None:
    place = Reference(topic="t", partition=0, offset=0, id="x")
    samples = [
        Sample(
            reference=place, sample_id=str(age), role="agent", advantage=0.0, policy_version=7 - age, lag=age,
            versions=VersionSpan(oldest=7 - age, newest=7),
        )
        for age in (2, 0)
    ]  # fmt: skip
    batch = BatchReady(run_id="r", event_id="b", step=7, generation=0, designer_generation=-1, samples=samples)
    ((_, row),) = rows_of(Topic.BATCH_READY, batch, 0, 0)
    assert (row["policy_versions"], row["newest_versions"], row["lags"]) == ([5, 7], [7, 7], [2, 0])
