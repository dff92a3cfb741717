"""The output layer in float32 where a model's weights are bfloat16.

A bfloat16 logit near 20 stands 0.125 from its neighbours, so two ways to the same hidden state end in log-probabilities that
differ by .05 in the mean: seen with SmolLM2-135M, whose canary no sampler passed. Called by the trainer and the transformers
sampler right after loading, so that both take the same steps. The weight stays what it is (and tied); only the product is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def exact_head(language_model: Any, *, constant: bool = False) -> None:
    """Has the output embeddings of a transformers model give float32 logits [..., V] from float32 products.

    `constant`: the weights stay as they are, so that a CPU keeps them in float32 beside: a decoding step of SmolLM2 would
    else spend most of its time on the conversion.
    """
    import torch
    from torch.nn import functional

    head = language_model.get_output_embeddings()
    if head.weight.dtype == torch.float32:
        return

    kept = head.weight.detach().float() if constant and head.weight.device.type == "cpu" else None

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        bias = None if head.bias is None else head.bias.float()
        return functional.linear(hidden.float(), head.weight.float() if kept is None else kept, bias)

    head.forward = forward
