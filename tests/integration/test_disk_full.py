"""A disk that is full during a checkpoint or a policy write: what stood there stays whole, and the step is trained later, once.

On a real file system of a few MiB, which only root may mount: for other users the whole file runs in namespaces of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.policystore import PolicyStore
from schemas.errors import DiskFullError
from schemas.process import BrokerSettings
from schemas.train import PolicyPublished, StepFinished
from tests.integration.test_trainer_loop import model_folder
from tests.trainlog import Log, recipe_of
from trainer.checkpoint import CheckpointStore
from trainer.loop import run

pytestmark = pytest.mark.integration
__all__ = ["model_folder"]  # a fixture
SIZE_KIB = 6 * 1024
LEFT_BYTES = 16 * 1024  # less than a checkpoint or a policy


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of SIZE_KIB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """A file that leaves LEFT_BYTES of the disk."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - LEFT_BYTES)
    return ballast


@pytest.fixture
def new_log(broker_settings: BrokerSettings, model_folder: Path) -> Iterator[Callable[[str, Path], Log]]:
    opened: list[Log] = []

    def make(run_id: str, state: Path) -> Log:
        state.mkdir(exist_ok=True)
        overrides = {"schedule.steps": 2, "train.batch_deadline_s": 60.0}
        opened.append(Log(broker_settings, run_id, recipe_of(model_folder, **overrides), state))
        return opened[-1]

    yield make
    for log in opened:
        log.producer.close()


def write_batches(log: Log, *steps: int) -> None:
    log.send(*(log.batch(step, plays=4 if step < 2 else 0, design=step - 1, drain=step == 2) for step in steps))


def told_by(log: Log) -> BaseException:
    """What a trainer of the run ends in."""
    with pytest.raises(BaseException) as caught:
        run(log.context)
    return caught.value


def check_full_disk(new_log: Callable[[str, Path], Log], run_id: str, tmp_path: Path, small_disk: Path, what: str) -> None:
    """`what` ("checkpoints" or "policies") lies on the disk that runs full after the first step."""
    calm = new_log(run_id + "-calm", tmp_path / "calm")
    write_batches(calm, 0, 1, 2)
    run(calm.context)

    state = tmp_path / "state"
    state.mkdir()
    (small_disk / what).mkdir()
    (state / what).symlink_to(small_disk / what)
    log = new_log(run_id, state)
    write_batches(log, 0)
    told: list[BaseException] = []
    trainer = threading.Thread(target=lambda: told.append(told_by(log)), daemon=True)
    trainer.start()
    end = time.monotonic() + 120
    while not log.read(StepFinished):
        assert trainer.is_alive(), told
        assert time.monotonic() < end
        time.sleep(0.2)
    ballast = fill(small_disk)  # while it waits for batch 1
    write_batches(log, 1, 2)
    trainer.join(120)
    told.append(told_by(log))  # a second try does no harm either
    for problem in told:
        assert isinstance(problem, DiskFullError), problem
        assert "no space left to write" in str(problem)
        assert "Free space and start again: what stood there before is whole" in str(problem)
    assert [step.step for step in log.read(StepFinished)] == [0]
    kept = CheckpointStore(state / "checkpoints" / run_id).load(run_id)
    assert kept is not None
    assert kept[0].last == (0 if what == "checkpoints" else 1), "the newest checkpoint that fitted is whole"
    for policy in log.read(PolicyPublished):
        assert PolicyStore(str(state / "policies")).fetch(policy).is_dir()
    assert not list(small_disk.rglob(".draft-*")), "nothing half-written is left on the full disk"

    ballast.unlink()
    run(log.context)
    assert [step.step for step in log.read(StepFinished)] == [0, 1, 2]
    digests = [[policy.digest for policy in one.read(PolicyPublished)] for one in (calm, log)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4


def check_checkpoint(new_log: Callable[[str, Path], Log], run_id: str, tmp_path: Path, small_disk: Path) -> None:
    """A disk that is full while a checkpoint is written costs no step and no checkpoint."""
    check_full_disk(new_log, run_id, tmp_path, small_disk, "checkpoints")


def check_policy(new_log: Callable[[str, Path], Log], run_id: str, tmp_path: Path, small_disk: Path) -> None:
    """A disk that is full while a policy is written costs no step and no policy: the checkpoint holds the step already."""
    check_full_disk(new_log, run_id, tmp_path, small_disk, "policies")


def check_namespace() -> None:
    """Both, where we are root of namespaces of our own."""
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-m", "pytest", "-q", __file__]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "2 passed" in answer.stdout


if os.geteuid() == 0:
    test_full_disk_during_a_checkpoint_costs_no_step = check_checkpoint
    test_full_disk_during_a_policy_write_costs_no_step = check_policy
else:
    test_full_disk_costs_no_step_seen_in_namespaces_of_our_own = check_namespace
