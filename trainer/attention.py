"""Attention over a row that holds several samples, each of which sees only itself.

In: queries, keys and values of one packed row, and where its samples begin. Out: what they give, as transformers wants it. Called
by the model's layers, once `use_packed_attention` has been called. Sample by sample through torch's causal kernel: no token is
padded, no score between samples is computed, none has to be masked. A block-diagonal mask over the row would compute them all.
Raises SettingsError for models whose layers look at tokens otherwise than by full attention.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from schemas.errors import SettingsError

NAME = "spade_packed"


def use_packed_attention(model: Any) -> None:
    """Has `model` attend within samples where it is told of them, and as before where it is not."""
    from transformers import AttentionInterface

    others = {kind for kind in getattr(model.config, "layer_types", None) or () if kind != "full_attention"}
    if others or getattr(model.config, "sliding_window", None):
        raise SettingsError(
            f'train.packing = "packed": the model has layers of {", ".join(sorted(others)) or "sliding_attention"}, '
            "which would see the samples beside",
            'Set train.packing = "padded"',
        )
    AttentionInterface.register(NAME, packed_attention)
    model.set_attn_implementation(NAME)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, T, size], key and value [1, key-value heads, T, size]; cu_seq_lens_q [samples + 1] int32, from 0 to T.

    Gives [1, T, heads, size].
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if cu_seq_lens_q is None:
        found: torch.Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **more)[0]
        return found, None
    parts = [
        sdpa_attention_forward(module, query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], None, **more)[0]
        for a, b in pairwise(cu_seq_lens_q.tolist())
    ]
    return torch.cat(parts, dim=1), None
