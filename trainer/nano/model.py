"""The nano model's shape: a Qwen3 of 0.9 million parameters, an ordinary Hugging Face folder of float32 safetensors.

Called by the build and its tests. torch and transformers are imported inside the functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.dialects.nano import EOS, PAD
from trainer.nano.tokenizer import VOCABULARY

if TYPE_CHECKING:
    from torch.nn import Module

CONTEXT = 1024
"""Positions that the model may be given; the warm start never shows more than some 200."""


def make_model(seed: int) -> Module:
    """An untrained nano model in float32; the same weights for the same seed and torch version."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
        attention_dropout=0.0,
    )
    model: Module = Qwen3ForCausalLM(config).float()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=_deviation(name, parameter.shape[1]))
    return model


def _deviation(name: str, inputs: int) -> float:
    """Standard deviation of a matrix at the start; transformers' 0.02 is far too small for 128 inputs."""
    if "embed" in name:
        return 0.06
    into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
    return float(inputs**-0.5) * (0.35 if into_stream else 1.0)


def save_model(model: Any, folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors; whatever stood there under these names is replaced."""
    model.generation_config.do_sample = True
    model.generation_config.temperature = 1.0
    model.generation_config.top_k = 0
    model.generation_config.top_p = 1.0
    model.save_pretrained(folder, safe_serialization=True)
