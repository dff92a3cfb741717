"""Simple batched sampling for the build's own checks: rows of one static batch, key-value cache, full softmax at a temperature.

Not the production sampler (workers/samplers): no truncation, no log-probabilities, no prefix reuse. Called by the build's
evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.dialects.nano import EOS, PAD


def sample(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, greedy: bool = False) -> list[list[int]]:
    """One completion for each prompt, its stop token included where it stopped; temperature 1. Blocks on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), PAD, dtype=torch.long)
    mask = torch.zeros((len(prompts), width), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    said: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(len(prompts))
    cache = None
    with torch.inference_mode():
        for _ in range(max_tokens):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits = out.logits[:, -1].float()
            drawn = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
            for row, token in zip(rows.tolist(), drawn.tolist(), strict=True):
                said[row].append(token)
            going = drawn != EOS
            if not bool(going.any()):
                break
            if not bool(going.all()):
                keep = going.nonzero()[:, 0]
                rows, drawn, mask = rows[keep], drawn[keep], mask[keep]
                cache.batch_select_indices(keep)
            ids = drawn[:, None]
            mask = torch.cat([mask, torch.ones((len(rows), 1), dtype=torch.long)], 1)
    return said
