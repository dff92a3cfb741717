"""A packed row is computed as if each of its samples stood alone: same logits, same gradients, nothing seen of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import SettingsError
from tests.trainerbatches import batch, save_model
from trainer.attention import use_packed_attention
from trainer.model import PolicyModule, load_language_model
from trainer.packing import Trajectory, pack


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def packed_model(folder: Path) -> Any:
    model = load_language_model(folder, "float32")
    use_packed_attention(model)
    return model


def row_logits(model: Any, samples: list[Trajectory]) -> list[torch.Tensor]:
    """Logits [actions, V] of each sample, computed in one row."""
    (micro,) = pack(samples, [1.0] * len(samples), range(len(samples)), 10_000, all_gradients=True, packed=True)
    logits = PolicyModule(model)(micro.ids, micro.row, micro.column, micro.place, micro.bounds)
    return [logits[micro.sample == micro.index.index(position)] for position in range(len(samples))]


def lone_logits(model: Any, sample: Trajectory) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor(sample.tokens[None])).logits[0, sample.actions - 1]
    return found


def test_logits_and_gradients_are_those_of_each_sample_alone(folder: Path) -> None:
    packed, plain = packed_model(folder), load_language_model(folder, "float32")
    samples = batch(count=4)
    together, alone = row_logits(packed, samples), [lone_logits(plain, sample) for sample in samples]
    for left, right in zip(together, alone, strict=True):
        assert (left - right).abs().max() < 1e-5
    torch.autograd.backward(torch.cat(together).square().mean())
    torch.autograd.backward(torch.cat(alone).square().mean())
    for (name, left), (_, right) in zip(packed.named_parameters(), plain.named_parameters(), strict=True):
        assert left.grad is not None, name
        assert (left.grad - right.grad).abs().max() < 1e-6, name


def test_what_stands_in_one_sample_changes_no_bit_of_another(folder: Path) -> None:
    model = packed_model(folder)
    samples = batch(count=3)
    changed = [Trajectory(**{**vars(samples[0]), "tokens": samples[0].tokens[::-1].copy()}), *samples[1:]]
    before, after = row_logits(model, samples), row_logits(model, changed)
    assert not torch.equal(before[0], after[0])
    assert all(torch.equal(left, right) for left, right in zip(before[1:], after[1:], strict=True))


def test_a_model_that_looks_through_a_window_is_refused(folder: Path) -> None:
    model = load_language_model(folder, "float32")
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(SettingsError, match="layers of sliding_attention"):
        use_packed_attention(model)
