"""The trainer's process on the real broker: hand-made batches in, policies and finished steps out, whatever kills it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from infra.cli.fork import plan_fork
from infra.cli.rundir import Notes, write_notes
from infra.policystore import PolicyStore
from schemas import ids
from schemas.common import Reference, unpack_floats, unpack_ints
from schemas.errors import ModelError, ReferenceGoneError, StageTimeoutError, TrainingError
from schemas.process import BrokerSettings
from schemas.run import RunEnding, RunFinished
from schemas.topics import Topic
from schemas.train import AGENT, DESIGNER, BatchReady, PolicyPublished, Sample, StepFinished
from tests.trainlog import Log, recipe_of, save_log_model
from trainer.loop import run

pytestmark = pytest.mark.integration

CHILDREN = """
import json, os, signal, sys
import deepspeed, transformers, torch
# What the engine imports at its start: here once, or each child would.
import transformers.models.qwen3.modeling_qwen3, transformers.generation.utils, torch._inductor.compile_fx
import deepspeed.runtime.zero.stage_1_and_2, deepspeed.comm.torch, deepspeed.module_inject
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM
import trainer.checkpoint, trainer.engine, trainer.loop, trainer.publish
from infra.telemetry import setup_logging
from schemas.process import ProcessContext

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def around(owner, name, before=None, after=None, when=lambda *a: True):
    real = getattr(owner, name)
    def patched(*args, **kwargs):
        hit = when(*args)
        if hit and before: before()
        result = real(*args, **kwargs)
        if hit and after: after()
        return result
    setattr(owner, name, patched)

POINTS = {
    "before the optimizer step": lambda: around(trainer.engine.TrainEngine, "_apply", before=kill),
    "after the optimizer step": lambda: around(trainer.engine.TrainEngine, "_apply", after=kill),
    "in the checkpoint write": lambda: around(
        trainer.checkpoint, "_write", before=kill, when=lambda path, data: path.name == "manifest.json"),
    "checkpoint durable, nothing told": lambda: around(trainer.checkpoint.CheckpointStore, "save", after=kill),
    "in the policy write": lambda: around(trainer.publish, "write_policy", after=kill),
    "policy durable, not told": lambda: around(trainer.loop, "publish", after=kill),
    "policy told, step not": lambda: around(trainer.loop.Trainer, "_tell_step", before=kill),
    "none": lambda: None,
}
setup_logging("trainer")
context = ProcessContext.model_validate_json(sys.argv[1])
ended = []
for point in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        POINTS[point]()
        trainer.loop.run(context)
        os._exit(0)
    ended.append((point, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_log_model(tmp_path_factory.mktemp("model"))


NewLog = Callable[..., Log]


@pytest.fixture
def new_log(broker_settings: BrokerSettings, model_folder: Path, tmp_path: Path) -> Iterator[NewLog]:
    opened: list[Log] = []

    def make(run_id: str, **overrides: Any) -> Log:
        state = tmp_path / run_id
        state.mkdir(exist_ok=True)
        opened.append(Log(broker_settings, run_id, recipe_of(model_folder, **overrides), state))
        return opened[-1]

    yield make
    for log in opened:
        log.producer.close()


def test_a_run_is_trained_batch_by_batch_published_and_finished(new_log: NewLog, run_id: str, model_folder: Path) -> None:
    log = new_log(run_id)
    log.whole_run()
    run(log.context)

    policies = log.read(PolicyPublished)
    assert [policy.version for policy in policies] == [0, 1, 2, 3, 4]
    assert len({policy.digest for policy in policies}) == 5, "each step changed the weights"
    steps = log.read(StepFinished)
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert [step.drain for step in steps] == [False, False, False, True]
    assert steps[1].trained == ["play-1-0", "play-1-1", "play-1-2", "play-1-3", "design-0"]
    assert steps[1].roles[AGENT].tokens == sum(3 + 12 + 3 * index - 8 for index in range(4))
    assert steps[1].roles[DESIGNER].tokens == 10
    assert steps[1].roles[DESIGNER].lag_max == 1
    assert set(steps[1].seconds) == {"wait", "fetch", "forward", "backward", "step", "checkpoint", "publish"}
    (finished,) = log.read(RunFinished)
    assert (finished.steps, finished.drain_steps, finished.final_version) == (3, 1, 4)
    assert (finished.agent_samples, finished.designer_samples) == (12, 3)
    assert finished.final_digest == policies[-1].digest

    run(log.context)  # a finished run is left alone
    assert len(log.read(StepFinished)) == 4


def test_the_canary_of_a_policy_is_what_transformers_computes_from_its_folder(new_log: NewLog, run_id: str) -> None:
    from transformers import AutoModelForCausalLM

    log = new_log(run_id, **{"schedule.steps": 1})
    log.send(log.batch(0), log.batch(1, plays=0, design=0, drain=True))
    run(log.context)
    policies = log.read(PolicyPublished)
    assert len(policies) == 3
    seen = []
    for policy in policies:
        folder = PolicyStore(str(Path(log.context.state_dir) / "policies")).fetch(policy)
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokens = torch.tensor([unpack_ints(policy.canary.tokens)])
        with torch.no_grad():
            expected = model(tokens).logits[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None]).squeeze(-1)
        told = torch.tensor(unpack_floats(policy.canary.logprobs))
        assert (told - expected).abs().max() < policy.canary.tolerance / 10
        seen.append(told)
    assert (seen[0] - seen[1]).abs().max() > policies[0].canary.tolerance, "the canary tells versions apart"


def test_kills_at_every_point_of_a_step_leave_each_batch_trained_once_and_the_weights_bit_equal(
    new_log: NewLog, run_id: str, tmp_path: Path
) -> None:
    undisturbed = new_log(run_id + "-calm")
    undisturbed.whole_run()
    run(undisturbed.context)

    log = new_log(run_id)
    log.whole_run()
    points = [
        "policy durable, not told",  # version 0's; all below are step 0's
        "before the optimizer step",
        "after the optimizer step",
        "in the checkpoint write",
        "checkpoint durable, nothing told",
        "in the policy write",
        "policy durable, not told",
        "policy told, step not",
        "none",
    ]
    command = [sys.executable, "-c", CHILDREN, log.context.model_dump_json(), json.dumps(points)]
    with (tmp_path / "children").open("w+") as told:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=told, text=True, timeout=400, check=False)
        told.seek(0)
        assert done.returncode == 0, told.read()[-3000:]
    ended = json.loads(done.stdout.splitlines()[-1])
    assert ended == [[point, 0 if point == "none" else -9] for point in points]

    assert Counter(step.step for step in log.read(StepFinished)) == Counter(range(4))
    assert Counter(policy.version for policy in log.read(PolicyPublished)) == Counter(range(5))
    trained = Counter(sample for step in log.read(StepFinished) for sample in step.trained)
    assert trained == Counter(sample for step in undisturbed.read(StepFinished) for sample in step.trained)
    assert set(trained.values()) == {1}
    digests = [[policy.digest for policy in one.read(PolicyPublished)] for one in (undisturbed, log)]
    assert digests[0] == digests[1]


def test_an_empty_batch_publishes_the_next_version_with_the_same_weights(new_log: NewLog, run_id: str) -> None:
    log = new_log(run_id, **{"schedule.steps": 2})
    log.send(log.batch(0), log.batch(1, plays=0), log.batch(2, plays=0, drain=True))
    run(log.context)
    policies = log.read(PolicyPublished)
    assert [policy.version for policy in policies] == [0, 1, 2, 3]
    assert policies[0].digest != policies[1].digest == policies[2].digest == policies[3].digest
    assert log.read(StepFinished)[1].loss == 0


def test_a_run_ending_shortens_the_plan_to_its_last_generation_and_its_drain(new_log: NewLog, run_id: str) -> None:
    log = new_log(run_id, **{"schedule.steps": 6})
    ending = RunEnding(run_id=run_id, event_id=ids.event_id("ending", run_id), last_generation=0, cause="out of time")
    log.producer.send_all([(Topic.RUN_ENDING, ending)])
    log.send(log.batch(0), log.batch(1, plays=0, design=0, drain=True))
    run(log.context)
    (finished,) = log.read(RunFinished)
    assert (finished.steps, finished.drain_steps, finished.cause) == (1, 1, "out of time")


def test_non_finite_steps_are_skipped_then_restored_then_end_in_a_stated_cause(new_log: NewLog, run_id: str) -> None:
    log = new_log(run_id, **{"schedule.steps": 6, "train.max_skipped": 1})
    log.send(log.batch(0), *(log.batch(step, advantage=float("inf")) for step in range(1, 6)))
    with pytest.raises(TrainingError, match="steps in a row had a non-finite"):
        run(log.context)
    steps = log.read(StepFinished)
    assert [bool(step.skipped) for step in steps] == [False, True, True, True]
    assert steps[1].trained == []
    digests = [policy.digest for policy in log.read(PolicyPublished)]
    assert digests[1] == digests[2] != digests[0], "a skipped step changes nothing"
    assert digests[3] == digests[0], "the second in a row restores the weights that last gave a finite step"


def test_a_missing_batch_ends_in_a_timeout_that_names_it(new_log: NewLog, run_id: str) -> None:
    log = new_log(run_id, **{"train.batch_deadline_s": 0.5})
    log.send(log.batch(0))
    with pytest.raises(StageTimeoutError, match=f"no batch 1 of run {run_id}"):
        run(log.context)
    assert [step.step for step in log.read(StepFinished)] == [0]


def test_a_reference_that_the_log_no_longer_holds_is_a_clear_stop(new_log: NewLog, run_id: str) -> None:
    log = new_log(run_id)
    batch = log.batch(0)
    gone = Reference(topic=Topic.ROLLOUT_FINISHED.wire, partition=0, offset=10**9, id="gone")
    sample = Sample(reference=gone, sample_id="gone", role=AGENT, advantage=1.0, policy_version=0, lag=0)
    log.send(
        BatchReady(
            run_id=run_id,
            event_id=batch.event_id,
            step=0,
            generation=0,
            designer_generation=-1,
            samples=[*batch.samples, sample],
        )
    )
    with pytest.raises(ReferenceGoneError, match="no longer holds gone"):
        run(log.context)
    assert log.read(StepFinished) == []


def test_a_missing_model_folder_is_named(new_log: NewLog, run_id: str, tmp_path: Path) -> None:
    log = new_log(run_id, **{"model.path": str(tmp_path / "absent")})
    with pytest.raises(ModelError, match="absent"):
        run(log.context)


def test_only_the_policies_that_the_schedule_needs_are_kept(new_log: NewLog, run_id: str) -> None:
    log = new_log(run_id, **{"schedule.steps": 8, "train.keep_policies": 2})
    log.send(*(log.batch(step, plays=2) for step in range(8)), log.batch(8, plays=0, drain=True))
    run(log.context)
    kept = sorted(int(folder.name[1:9]) for folder in (Path(log.context.state_dir) / "policies").iterdir())
    assert kept == [0, 6, 7, 8, 9]
    assert len(log.read(PolicyPublished)) == 10


def test_a_fork_trains_on_from_its_parents_weights_and_optimizer(new_log: NewLog, run_id: str, tmp_path: Path) -> None:
    """A fork that is given the parent's next episodes makes the parent's next weights, bit for bit."""
    parent = new_log(run_id + "-parent", **{"schedule.steps": 2, "train.keep_every": 1})
    parent.send(parent.batch(0), parent.batch(1), parent.batch(2, plays=0, drain=True))
    run(parent.context)
    folder = tmp_path / parent.run_id
    write_notes(folder, Notes(run_id=parent.run_id, recipe_json=parent.recipe.model_dump_json()))
    recipe, line = plan_fork(folder, 1, ()).begin(tmp_path / run_id, run_id)
    assert "the optimizer goes on from its checkpoint" in line
    assert recipe.schedule.steps == 1

    fork = new_log(run_id, **{"schedule.steps": 1, "train.keep_every": 1, "model.path": recipe.model.path})
    assert fork.recipe == recipe
    batch = fork.batch(1)
    fork.send(msgspec.structs.replace(batch, step=0, generation=0), fork.batch(1, plays=0, drain=True))
    run(fork.context)
    parents = {policy.version: policy.digest for policy in parent.read(PolicyPublished)}
    assert [policy.digest for policy in fork.read(PolicyPublished)[:2]] == [parents[1], parents[2]]
    assert [step.step for step in fork.read(StepFinished)] == [0, 1]
