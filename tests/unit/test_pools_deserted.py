"""The table of pools that a trainer asks for is that of the stages themselves."""

from __future__ import annotations

import importlib

import pytest

from infra.kafka_groups import POOLS, pool_group, tell_deserted
from streams.stage import Stage, group_name
from streams.stages import SPECS


@pytest.mark.parametrize("stage", Stage)
def test_stream_pools_have_the_stages_groups_and_inputs(stage: Stage) -> None:
    assert pool_group(f"stream-{stage.value}", "run") == group_name(stage, "run")
    assert POOLS[f"stream-{stage.value}"] == SPECS[stage].inputs


@pytest.mark.parametrize("name", ["design", "validate", "rollout"])
def test_worker_pools_read_what_their_module_says_it_reads(name: str) -> None:
    told = (importlib.import_module(f"workers.{name}").__doc__ or "").replace("\n", " ")
    group = pool_group(f"work-{name}", "RUN")
    assert group in told
    before = told.split(group)[0]
    assert all(topic.wire in before for topic in POOLS[f"work-{name}"])


def test_pools_are_told_with_what_waits_for_them() -> None:
    assert tell_deserted({}) == "every pool of the run has a process"
    assert (
        tell_deserted({"work-design": 2, "work-rollout": 0}) == "no process works in work-design (2 records wait), work-rollout"
    )
