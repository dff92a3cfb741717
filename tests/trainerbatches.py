"""A tiny model and hand-made batches, the same in every process that asks. Called by the tests of trainer/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from schemas.common import SamplingSettings
from schemas.settings import TrainSettings
from schemas.train import AGENT, DESIGNER
from trainer.packing import Trajectory

VOCABULARY = 53
TABLE = [SamplingSettings(temperature=0.8, top_p=0.9, top_k=30), SamplingSettings()]


def save_model(folder: Path, vocabulary: int = VOCABULARY, seed: int = 11) -> Path:
    """A Qwen3 of two layers with tied embeddings, its weights by the seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def settings(**changes: Any) -> TrainSettings:
    """A step that moves the weights, cut into several passes."""
    return TrainSettings(**({"learning_rate": 1e-3, "micro_batch_tokens": 64} | changes))


def batch(seed: int = 0, count: int = 9) -> list[Trajectory]:
    """Samples of both roles and uneven lengths, one of advantage 0."""
    random = np.random.default_rng(seed)
    found = []
    for index in range(count):
        length = int(random.integers(6, 30))
        actions = np.sort(random.choice(np.arange(1, length), size=length // 2, replace=False))
        designer = index % 4 == 3
        found.append(
            Trajectory(
                sample_id=str(index),
                role=DESIGNER if designer else AGENT,
                advantage=0.0 if index == 1 else float(random.normal()),
                lag=index % 3,
                tokens=random.integers(0, VOCABULARY, length),
                actions=actions,
                sampled=random.uniform(-5, -3, len(actions)).astype(np.float32),
                settings=np.full(len(actions), int(designer), np.int64),
            )
        )
    return found
