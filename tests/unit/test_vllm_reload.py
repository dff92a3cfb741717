"""vLLM's sampler and damaged weights: the file is named, and what was half loaded never samples. vLLM itself is in tests/vllm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.common import pack_floats, pack_ints
from schemas.errors import ModelError
from schemas.train import Canary, PolicyPublished
from workers.samplers.vllm import VllmSampler
from workers.samplers.vllm_reload import PolicyReload


class Worker(PolicyReload):
    """Takes the weights that the real iterator reads from the files."""

    class model_runner:  # noqa: N801  # vLLM's attribute
        model = None

    def __init__(self) -> None:
        self.names: list[str] = []

    def reload_weights(self, weights_iterator: Iterator[tuple[str, Any]]) -> None:
        self.names = [name for name, _ in weights_iterator]
        if "foreign.weight" in self.names:
            raise KeyError("foreign.weight")  # as vLLM's loaders do


class Engine:
    """As much of vLLM's engine as a change of weights uses."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def collective_rpc(self, method: str, args: tuple[str]) -> None:
        getattr(self.worker, method)(*args)

    def reset_prefix_cache(self) -> None:
        return None


def write_weights(folder: Path, name: str = "embed.weight") -> Path:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text('{"rope_theta": 1e4, "dtype": "float32"}')
    save_file({name: torch.zeros(8, 4)}, folder / "model.safetensors")
    return folder / "model.safetensors"


def published(version: int) -> PolicyPublished:
    canary = Canary(tokens=pack_ints([1, 2]), logprobs=pack_floats([-1.0]))
    return PolicyPublished(run_id="r", event_id=f"p{version}", version=version, digest=f"d{version}", place="", canary=canary)


def test_weights_that_are_cut_off_are_named_and_the_policy_before_stays(tmp_path: Path) -> None:
    whole, cut = write_weights(tmp_path / "v1"), write_weights(tmp_path / "v2")
    cut.write_bytes(cut.read_bytes()[:-7])
    sampler, worker = VllmSampler(), Worker()
    sampler._engine, sampler._folder = Engine(worker), whole.parent
    sampler.policy_version, sampler.policy_digest = 1, "d1"
    with pytest.raises(ModelError, match=r"v2/model\.safetensors holds no readable weights: .*publish it again"):
        sampler.load(published(2), cut.parent)
    assert (sampler.policy_version, sampler.policy_digest, worker.names) == (1, "d1", ["embed.weight"])


def test_an_engine_takes_no_weights_under_another_config(tmp_path: Path) -> None:
    one, other, foreign = (write_weights(tmp_path / f"v{number}") for number in (1, 2, 3))
    sampler = VllmSampler()
    sampler._engine, sampler._folder = Engine(Worker()), one.parent
    (other.parent / "config.json").write_text('{"rope_theta": 1e4, "dtype": "bfloat16"}')
    sampler.load_unpublished(other.parent, 2, "d2")
    assert sampler.policy_version == 2
    (foreign.parent / "config.json").write_text('{"rope_theta": 1e6, "dtype": "float32"}')
    with pytest.raises(ModelError, match=r"v3 has another config\.json than .*v2.*a process of its own"):
        sampler.load_unpublished(foreign.parent, 3, "d3")


def test_where_nothing_whole_can_be_loaded_the_sampler_holds_no_policy(tmp_path: Path) -> None:
    whole, cut = write_weights(tmp_path / "v1"), write_weights(tmp_path / "v2")
    for file in (whole, cut):
        file.write_bytes(b"not weights")
    sampler = VllmSampler()
    sampler._engine, sampler._folder = Engine(Worker()), whole.parent
    sampler.policy_version, sampler.policy_digest = 1, "d1"
    with pytest.raises(ModelError, match=r"v1/model\.safetensors"):
        sampler.load(published(2), cut.parent)
    assert (sampler.policy_version, sampler.policy_digest) == (-1, "")


def test_a_folder_without_weights_is_no_policy_though_the_engine_would_go_on_with_its_own(tmp_path: Path) -> None:
    worker = Worker()
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors\. Name an ordinary Hugging Face folder"):
        worker.take_policy(str(tmp_path))
    assert worker.names == []


def test_weights_of_another_model_are_told_as_such(tmp_path: Path) -> None:
    write_weights(tmp_path / "v1", "foreign.weight")
    with pytest.raises(ModelError, match=r"can't take the weights in .*v1 .*KeyError: 'foreign.weight'.*of another model"):
        Worker().take_policy(str(tmp_path / "v1"))
