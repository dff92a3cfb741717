"""All samplers dead, or never started: the trainer ends within its limit and says who is missing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka_groups import POOLS, find_deserted
from infra.runs import Run
from schemas.common import SamplingSettings
from schemas.errors import StageTimeoutError
from schemas.process import BrokerSettings
from schemas.rollout import Play, RolloutRequested
from schemas.topics import Topic
from tests.echoworkers import Echo
from tests.integration.test_trainer_loop import model_folder
from tests.trainlog import Log, recipe_of
from trainer.loop import run
from workers.consumer import UnitConsumer
from workers.stage import Stage

pytestmark = pytest.mark.integration
__all__ = ["model_folder"]  # a fixture


@pytest.fixture
def log(broker_settings: BrokerSettings, model_folder: Path, run_id: str, tmp_path: Path) -> Iterator[Log]:
    opened = Log(broker_settings, run_id, recipe_of(model_folder, **{"train.batch_deadline_s": 2.0}), tmp_path)
    yield opened
    opened.producer.close()


def ask_for_plays(log: Log) -> None:
    request = RolloutRequested(
        run_id=log.run_id, event_id="u", unit_id="u", step=0, generation=0, policy_version=0, settings=SamplingSettings(),
        max_turns=1, context_tokens=64, environments=[], plays_expected={},
        plays=[Play(play_id="p", env_id="e", arm="plain", index=0, env_seed=0, sampling_seed=0)],
    )  # fmt: skip
    log.producer.send_all([(Topic.ROLLOUT_REQUESTED, request)])


def test_trainer_without_samplers_ends_at_its_deadline_and_names_the_pools_that_nobody_works_in(log: Log) -> None:
    ask_for_plays(log)
    with pytest.raises(StageTimeoutError) as caught:
        run(log.context)
    told = str(caught.value)
    assert (
        f"no batch 0 of run {log.run_id} in spade-batch-ready within 2 s (the last one trained is -1): no process works in"
        in told
    )
    assert re.search(r"work-rollout \(\d+ records wait\)", told)
    assert all(pool in told for pool in POOLS)


def test_pool_with_a_living_process_is_not_named_and_one_whose_process_has_left_is(
    log: Log, broker_settings: BrokerSettings
) -> None:
    stop = threading.Event()
    stage = Stage("rollout", POOLS["work-rollout"], deadline_s=60, prefetch=1, tries=3)
    started = Run(started=log._started(""), recipe=log.recipe)
    consumer = UnitConsumer(log.context, started, stage, Echo(lambda record: None), stop)
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while "work-rollout" in find_deserted(broker_settings, log.run_id):
        assert time.monotonic() < end, "the process did not join its group"
    assert set(find_deserted(broker_settings, log.run_id)) == POOLS.keys() - {"work-rollout"}
    stop.set()
    thread.join(30)
    assert set(find_deserted(broker_settings, log.run_id)) == POOLS.keys()
