"""The language model as the trainer sees it: logits at action positions only, log-probabilities under a sampler's distribution.

In: a policy's folder; token ids and positions. Out: an ordinary transformers model in a thin module. Called by trainer/engine and
trainer/publish. Loading takes safetensors only and never remote code; raises ModelError.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from infra.lmhead import exact_head
from infra.policystore import policy_files
from infra.sampling import token_logprobs
from schemas.common import SamplingSettings
from schemas.errors import ModelError

if TYPE_CHECKING:
    from trainer.packing import MicroBatch

PLAIN = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0)


class PolicyModule(nn.Module):
    """A causal language model that computes logits only where a token was sampled: on a CPU the vocabulary costs most there."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model = language_model

    def forward(
        self,
        ids: torch.Tensor,
        row: torch.Tensor,
        column: torch.Tensor,
        place: torch.Tensor | None = None,
        bounds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [n, V] float32 after position (row, column) of ids [B, L], padded on the right (no mask is needed then).

        Packed: ids [1, T], place [1, T] restarts at each sample, bounds [samples + 1] says where each begins.
        """
        packed: dict[str, Any] = {}
        if place is not None:
            packed = {"position_ids": place, "cu_seq_lens_q": bounds}  # transformers' own words for it
        hidden = self.language_model.get_decoder()(input_ids=ids, use_cache=False, **packed).last_hidden_state
        flat: torch.Tensor = hidden.reshape(-1, hidden.shape[-1]).index_select(0, row * ids.shape[1] + column)
        logits: torch.Tensor = self.language_model.get_output_embeddings()(flat)
        return logits.float()


def load_language_model(folder: Path, dtype: str) -> Any:
    """The transformers model in `folder`, "float32" or "bfloat16", without dropout. Raises ModelError naming the folder."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    policy_files(folder)
    logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as problem:  # the boundary to transformers, whose errors have no common base
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise ModelError(
            f"model folder {folder} can't be loaded: {first}", "Save the model again with save_pretrained"
        ) from problem
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise ModelError(f"model folder {folder} lacks the weight {missing[0]}", "Save the model again with save_pretrained")
    exact_head(model)
    model.eval()
    return model


def action_logprobs(logits: torch.Tensor, micro: MicroBatch, table: Sequence[SamplingSettings]) -> torch.Tensor:
    """Log-probability [n] of each action token of a micro batch, each under its own row of the table; -inf outside its set."""
    used = torch.unique(micro.settings).tolist() if len(table) > 1 else [0]
    if len(used) == 1:
        return token_logprobs(logits, micro.target, table[used[0]])
    found = logits.new_zeros(len(micro.target))
    for index in used:
        where = (micro.settings == index).nonzero().squeeze(-1)
        found = found.index_copy(0, where, token_logprobs(logits[where], micro.target[where], table[index]))
    return found


def text_logprobs(language_model: Any, tokens: Sequence[int]) -> list[float]:
    """Plain log-probability of tokens[1:], each given what stands before it; float32, from the model's own full forward."""
    ids = torch.tensor([list(tokens)], dtype=torch.int64, device=language_model.device)
    with torch.no_grad():
        logits = language_model(input_ids=ids, use_cache=False).logits[0].float()
    chosen = logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
    return [float(value) for value in chosen]
