"""A model's shape, from its folder's config.json or from the table of backbones: enough to count parameters and bytes.

Counts the common decoder: attention with grouped keys and values, gated feed-forward, or experts of one, and norms. Other
architectures (shared experts, latent attention) are not told apart, so their count is a guess; the weights' file then decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.errors import ModelError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. `experts` 0: a dense feed-forward of width `feed_forward`, else so many of that width."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied: bool
    positions: int  # context that the model was made for
    experts: int = 0
    experts_active: int = 0
    query_norms: bool = True  # Qwen3: a norm a head on queries and keys

    @property
    def parameters(self) -> int:
        """All of them."""
        return self._outside + self.layers * (self._attention + self._expert * max(self.experts, 1) + self._router)

    @property
    def active_parameters(self) -> int:
        """Those that one token passes."""
        used = self.experts_active if self.experts else 1
        return self._outside + self.layers * (self._attention + self._expert * used + self._router)

    @property
    def cache_bytes_a_token(self) -> int:
        """Keys and values of one token in 16 bits."""
        return 2 * 2 * self.layers * self.key_value_heads * self.head_size

    @property
    def _outside(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def _attention(self) -> int:
        wide, narrow = self.heads * self.head_size, self.key_value_heads * self.head_size
        norms = 2 * self.hidden + (2 * self.head_size if self.query_norms else 0)
        return 2 * self.hidden * wide + 2 * self.hidden * narrow + norms

    @property
    def _expert(self) -> int:
        return 3 * self.hidden * self.feed_forward

    @property
    def _router(self) -> int:
        return self.hidden * self.experts


BACKBONES: Final[dict[str, ModelShape]] = {
    "Qwen3-4B": ModelShape(2560, 36, 32, 8, 128, 9728, 151936, True, 40960),
    "Qwen3-8B": ModelShape(4096, 36, 32, 8, 128, 12288, 151936, False, 40960),
    "Qwen3-30B-A3B": ModelShape(2048, 48, 32, 4, 128, 768, 151936, False, 40960, experts=128, experts_active=8),
}


def find_shape(folder: Path) -> ModelShape | None:
    """The shape of a model's folder, or of the backbone whose name the folder bears where it isn't there yet; None: unknown.

    Raises ModelError where config.json is there and is no JSON of numbers.
    """
    file = folder / "config.json"
    if file.is_file():
        return read_shape(file)
    return next((shape for name, shape in BACKBONES.items() if folder.name == name or folder.name.startswith(f"{name}-")), None)


def read_shape(file: Path) -> ModelShape | None:
    """The shape in a config.json; None where it names its sizes by other words. Raises ModelError naming the file."""
    fix = "Take the config.json that came with the model"
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        heads = int(config["num_attention_heads"])
        return ModelShape(
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
            feed_forward=int(config.get("moe_intermediate_size") or config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            positions=int(config.get("max_position_embeddings") or 0),
            experts=experts,
            experts_active=int(config.get("num_experts_per_tok") or 0) if experts else 0,
            query_norms=str(config.get("model_type", "")).startswith("qwen3"),
        )
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        raise ModelError(f"model.path: {file} can't be used ({problem})", fix) from problem
    except KeyError:
        return None
