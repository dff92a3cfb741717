"""Every record becomes rows of its table's own columns, the lower of two copies counts, and nothing of an episode is left out."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from infra.migrate import FOLDER
from schemas.common import Record, Reference, SamplingSettings, Span, VersionSpan, pack_floats, pack_ints
from schemas.design import DesignRequested, DesignSlot, Document, EnvProposed
from schemas.rollout import RolloutFinished, Turn
from schemas.topics import Topic
from schemas.train import BatchReady, Sample
from workers.memory_rows import LAST_VERSION, TABLES, rows_of

OneOfEach = Callable[[str], list[tuple[Topic, Record]]]


def columns() -> dict[str, set[str]]:
    """Table -> column names, read from the migrations."""
    found: dict[str, set[str]] = {}
    for path in sorted(FOLDER.glob("*.up.sql")):
        for name, body in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)\n\(\n(.*?)\n\)\n", path.read_text(), re.DOTALL):
            found[name] = set(re.findall(r"^    (\w+) ", body, re.MULTILINE))
        for name, body in re.findall(r"ALTER TABLE (\w+)(.*?);", path.read_text(), re.DOTALL):
            found.setdefault(name, set()).update(re.findall(r"ADD COLUMN IF NOT EXISTS (\w+) ", body))
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


def test_an_episode_keeps_its_texts_and_every_token_with_who_sampled_it() -> None:
    span = Span(start=1, end=3, policy_version=5, policy_digest="d", settings=SamplingSettings())
    turn = Turn(observation="see", action="do", reward=0.5, action_start=1, action_end=3, fault="no block", cut="turn")
    episode = RolloutFinished(
        run_id="r", event_id="e", tries=2, play_id="p", unit_id="u", env_id="v", step=1, generation=1, arm="plain", index=2,
        env_seed=7, plays_expected=8, tokens=pack_ints([1, 2, 151_668, 4]), logprobs=pack_floats([0.0, -0.5, -0.25, 0.0]),
        spans=[span], turns=[turn],
    )  # fmt: skip
    ((table, row),) = rows_of(Topic.ROLLOUT_FINISHED, episode, 0, 0)
    assert table == "episodes"
    assert (row["observations"], row["actions"], row["rewards"]) == (["see"], ["do"], [0.5])
    assert (row["faults"], row["cuts"]) == (["no block"], ["turn"])
    assert (row["tokens"], row["sampled_tokens"], row["policy_version"], row["play_index"], row["tries"]) == (4, 2, 5, 2, 2)
    assert (list(row["token_ids"]), list(row["logprobs"])) == ([1, 2, 151_668, 4], [0.0, -0.5, -0.25, 0.0])
    assert (row["sampled_from"], row["sampled_to"], row["sampled_by"]) == ([1], [3], [5])


def test_a_design_keeps_its_tokens_and_a_prompt_the_tag_of_its_document() -> None:
    design = EnvProposed(
        run_id="r", event_id="e", tries=1, env_id="v", unit_id="u", generation=1, slot=0, design_attempt=0, skill="s",
        document_id="d", group="g", prompt_tokens=pack_ints([9, 8, 7]), completion_tokens=pack_ints([6, 5]),
        logprobs=pack_floats([-0.5, -1.5]),
    )  # fmt: skip
    ((table, row),) = rows_of(Topic.ENV_PROPOSED, design, 0, 0)
    assert (table, row["prompt_tokens"], row["completion_tokens"], row["tries"]) == ("designs", 3, 2, 1)
    assert (list(row["prompt_token_ids"]), list(row["completion_token_ids"])) == ([9, 8, 7], [6, 5])
    assert list(row["logprobs"]) == [-0.5, -1.5]
    document = Document(document_id="d", title="", text="", tag="science")
    slot = DesignSlot(slot=0, design_attempt=0, env_id="v", skill="s", document=document, group="g")
    asked = DesignRequested(
        run_id="r", event_id="a", unit_id="u", generation=1, design_attempt=0, policy_version=0, settings=SamplingSettings(),
        slots=[slot],
    )  # fmt: skip
    (_, prompt), _ = rows_of(Topic.DESIGN_REQUESTED, asked, 0, 0)
    assert prompt["document_tag"] == "science"


def test_a_play_that_was_lost_has_no_tokens_and_bytes_that_end_within_one_lose_it_alone() -> None:
    common = {"run_id": "r", "event_id": "e", "play_id": "p", "unit_id": "u", "env_id": "v", "step": 1, "generation": 1}
    play = {**common, "arm": "plain", "index": 0, "env_seed": 0, "plays_expected": 1}
    for data, ids in ((b"", []), (pack_ints([3]) + b"\x01", [3])):
        episode = RolloutFinished(**play, tokens=data, logprobs=b"")  # type: ignore[arg-type]  # fields by name
        ((_, row),) = rows_of(Topic.ROLLOUT_FINISHED, episode, 0, 0)
        assert (list(row["token_ids"]), row["tokens"], list(row["logprobs"]), row["sampled_by"]) == (ids, len(ids), [], [])


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
