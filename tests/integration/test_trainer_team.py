"""Two processes as one trainer: the same steps as one process at each ZeRO stage, stated ends, resume at another number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.policystore import PolicyStore
from schemas.process import BrokerSettings
from schemas.train import AGENT, PolicyPublished, StepFinished
from tests.trainerbatches import TABLE, batch, save_model, settings
from tests.trainlog import Log, recipe_of, save_log_model
from trainer.engine import TrainEngine
from trainer.loop import run

pytestmark = pytest.mark.integration

CASES: dict[str, dict[str, Any]] = {
    "stage 0": {"zero_stage": 0},
    "stage 1": {"zero_stage": 1},
    "stage 2, packed": {"zero_stage": 2, "packing": "packed"},
    "stage 3": {"zero_stage": 3},
    "adapters at stage 2": {"zero_stage": 2, "lora_rank": 4},
    "divergence, two minibatches": {"kl_beta": 0.5, "minibatches": 2, "zero_stage": 1},
    "bfloat16 at stage 3": {"dtype": "bfloat16", "zero_stage": 3},
    "bfloat16, adapters at stage 2": {"dtype": "bfloat16", "zero_stage": 2, "lora_rank": 4},
}
STEPS = [(0, 9), (1, 9), (2, 1)]  # seed and samples of each batch; of one sample the second process has none
TEAM = """
import json, math, os, signal, sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from torch.distributed.distributed_c10d import _set_pg_timeout
from safetensors.torch import save_file
from schemas.errors import TrainingError
from tests.trainerbatches import TABLE, batch, settings
from trainer.engine import TrainEngine
from trainer.team import Team

folder, place, cases, steps = Path(sys.argv[1]), Path(sys.argv[2]), *map(json.loads, sys.argv[3:])
team = Team(settings(processes=2, rank_deadline_s=500), place / "logs")
told = {}
for name, changes in cases.items():
    engine = team.engine(folder, settings(**changes), 0, folder)
    poisoned = [replace(batch(5)[0], advantage=math.nan), *batch(5)[1:]]
    outcomes = [engine.train(batch(seed, count), TABLE) for seed, count in steps[:1]]
    before = engine.weights()
    refused = engine.train(poisoned, TABLE).skipped
    unharmed = all(before[key].equal(value) for key, value in engine.weights().items())
    middle = engine.state()
    outcomes += [engine.train(batch(seed, count), TABLE) for seed, count in steps[1:]]
    state = engine.state()
    save_file(state, place / f"{name}.safetensors")
    save_file(engine.weights(), place / f"{name}.weights.safetensors")
    engine.load_state(state)
    again = engine.state()
    engine.load_state(middle)
    for seed, count in steps[1:]:
        engine.train(batch(seed, count), TABLE)
    repeated = engine.state()
    told[name] = {
        "steps": [[one.loss, one.grad_norm, one.roles["agent"].tokens, one.roles["agent"].entropy] for one in outcomes],
        "refused": refused, "unharmed": unharmed, "canary": engine.canary([1, 2, 3]),
        "bits": state.keys() == again.keys() and all(state[key].equal(again[key]) for key in state),
        "repeats": state.keys() == repeated.keys() and all(state[key].equal(repeated[key]) for key in state),
    }
_set_pg_timeout(timedelta(seconds=3))
os.kill(team._members[1].process.pid, signal.SIGSTOP)
try:
    engine.train(batch(0), TABLE)
except TrainingError as problem:
    told["silent"] = str(problem)
os.kill(team._members[1].process.pid, signal.SIGKILL)
team._members[1].process.wait(10)
try:
    engine.check()
except TrainingError as problem:
    told["killed"] = str(problem)
team.end(politely=False)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("team")


@pytest.fixture(scope="module")
def told(folder: Path, place: Path) -> dict[str, Any]:
    """What two processes gave in each case."""
    arguments = [str(folder), str(place), json.dumps(CASES), json.dumps(STEPS)]
    found: dict[str, Any] = json.loads(run_python(TEAM, *arguments).splitlines()[-1])
    return found


def run_python(code: str, *arguments: str, expect: int = 0) -> str:
    """What a process of its own printed: a group of several processes would stay in this one."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == expect, done.stderr[-3000:]
    return done.stdout + done.stderr if expect else done.stdout


@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_steps_of_one(name: str, told: dict[str, Any], folder: Path, place: Path) -> None:
    from safetensors.torch import load_file

    engine = TrainEngine(folder, settings(**CASES[name]), 0, folder)
    outcomes = [engine.train(batch(seed, count), TABLE) for seed, count in STEPS]
    expected = [[one.loss, one.grad_norm, one.roles[AGENT].tokens, one.roles[AGENT].entropy] for one in outcomes]
    rounded = engine.settings.dtype == "bfloat16"
    for found, wanted in zip(told[name]["steps"], expected, strict=True):
        assert found == pytest.approx(wanted, rel=2e-2 if rounded else 2e-4, abs=2e-6)
    weights = load_file(place / f"{name}.weights.safetensors")
    assert weights.keys() == engine.weights().keys()
    assert are_close(weights, engine.weights(), engine.settings.learning_rate, 0.5 if rounded else 0.05)
    assert told[name]["canary"] == pytest.approx(engine.canary([1, 2, 3]), abs=1e-2 if rounded else 1e-4)


def test_the_losses_are_the_same_at_every_stage_and_number_of_processes(told: dict[str, Any]) -> None:
    losses = [[step[0] for step in told[name]["steps"]] for name in ("stage 0", "stage 1", "stage 2, packed", "stage 3")]
    for one in losses[1:]:
        assert one == pytest.approx(losses[0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_non_finite_batch_is_refused_by_both(name: str, told: dict[str, Any]) -> None:
    assert told[name]["refused"] == "non-finite loss"
    assert told[name]["unharmed"]


@pytest.mark.parametrize("name", CASES)
def test_the_checkpoint_of_two_processes_goes_back_bit_for_bit_and_fits_one(
    name: str, told: dict[str, Any], folder: Path, place: Path
) -> None:
    from safetensors.torch import load_file

    assert told[name]["bits"]
    assert told[name]["repeats"], "two processes that resume take the same steps again, bit for bit"
    kept = load_file(place / f"{name}.safetensors")
    engine = TrainEngine(folder, settings(**CASES[name]), 0, folder)
    engine.load_state(kept)
    again = engine.state()
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[key], kept[key]) for key in kept)
    assert not engine.train(batch(7), TABLE).skipped


def test_a_process_that_is_silent_or_killed_ends_the_trainer_with_the_cause(told: dict[str, Any]) -> None:
    assert "a process of the trainer did not answer within 500 s" in told["silent"]
    assert told["killed"].startswith("trainer rank 1 was ended by SIGKILL")
    assert "train-rank-1.log" in told["killed"]


RUN = """
import os, signal, sys
import trainer.team
from schemas.errors import SpadeError
from schemas.process import ProcessContext
from trainer.loop import run

context = ProcessContext.model_validate_json(sys.argv[1])
trained, real = [], trainer.team.LeadingEngine.train

def train(engine, *rest):
    trained.append(1)
    if len(trained) == 2:
        os.kill(engine._team._members[1].process.pid, signal.SIGKILL)
    return real(engine, *rest)

trainer.team.LeadingEngine.train = train
try:
    run(context)
except SpadeError as problem:
    sys.exit(f"error: {problem}")
"""


def test_a_run_of_two_processes_loses_one_and_goes_on_with_two_and_then_with_one(
    broker_settings: BrokerSettings, run_id: str, tmp_path: Path
) -> None:
    model = save_log_model(tmp_path / "model")
    logs = []
    for name in ("-one", ""):
        state = tmp_path / f"state{name}"
        state.mkdir()
        logs.append(Log(broker_settings, run_id + name, recipe_of(model, **{"train.processes": 2}), state))
    try:
        alone, log = logs
        alone.whole_run()
        run(alone.context, processes=1)
        batches = [log.batch(step, design=step - 1) for step in range(3)]
        log.send(*batches)
        assert "trainer rank 1 was ended by SIGKILL" in run_python(RUN, log.context.model_dump_json(), expect=1)
        assert [step.step for step in log.read(StepFinished)] == [0]
        assert "trainer rank 1 was ended by SIGKILL" in run_python(RUN, log.context.model_dump_json(), expect=1)
        assert [step.step for step in log.read(StepFinished)] == [0, 1]
        log.send(log.batch(3, plays=0, design=2, drain=True))
        run(log.context, processes=1)
        assert [step.step for step in log.read(StepFinished)] == [0, 1, 2, 3]
        trained = [[sample for step in one.read(StepFinished) for sample in step.trained] for one in logs]
        assert trained[0] == trained[1]
        assert are_close(final_weights(alone), final_weights(log), log.recipe.train.learning_rate)
    finally:
        for one in logs:
            one.producer.close()


def final_weights(log: Log) -> dict[str, torch.Tensor]:
    """Of the last policy."""
    from safetensors.torch import load_file

    last = max(log.read(PolicyPublished), key=lambda policy: policy.version)
    assert last.version == 4
    folder = PolicyStore(str(Path(log.context.state_dir) / "policies")).fetch(last)
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def are_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], learning_rate: float, share: float = 0.05) -> bool:
    """Whether steps of Adam were the same but for rounding, which can turn a step where the gradient is next to nothing: all but
    a hundredth of the weights within `share` of a step."""
    assert left.keys() == right.keys()
    gaps = torch.cat([(left[name].float() - right[name].float()).abs().reshape(-1) for name in left]).sort().values
    return bool(gaps[int(0.99 * len(gaps))] < share * learning_rate)
