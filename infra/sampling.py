"""Distribution maths that samplers and trainer share: which distribution a token is drawn from, and with what probability.

In: logits and the SamplingSettings of a span. Out: log-probabilities and drawn tokens. Called by workers/samplers and trainer,
so that both sides compute under one distribution. Torch is imported inside the functions only; nothing here blocks.

Order of the steps (as vLLM and transformers have it): divide by the temperature, keep the top_k largest logits, of these keep
the smallest set of the most likely tokens whose mass reaches top_p, renormalise. Ties at a bound are all kept, so that the set
does not depend on the order of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemas.common import SamplingSettings

if TYPE_CHECKING:
    from torch import Generator, Tensor


def is_truncated(settings: SamplingSettings) -> bool:
    """Whether some tokens have probability 0 under the settings."""
    return settings.top_p < 1 or settings.top_k > 0


def processed_logits(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Logits [..., V] after temperature and truncation, float32; -inf outside the kept set, at least one token kept."""
    scaled = logits.float()
    if settings.temperature != 1:
        scaled = scaled / settings.temperature
    vocabulary = scaled.shape[-1]
    if 0 < settings.top_k < vocabulary:
        smallest = scaled.detach().topk(settings.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < smallest, float("-inf"))
    if settings.top_p < 1:
        scaled = scaled.masked_fill(scaled < _nucleus_bound(scaled.detach(), settings.top_p), float("-inf"))
    return scaled


def processed_logprobs(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Log-probabilities [..., V] of the distribution that a token is drawn from, renormalised; -inf outside the kept set."""
    return processed_logits(logits, settings).log_softmax(-1)


def token_logprobs(logits: Tensor, tokens: Tensor, settings: SamplingSettings) -> Tensor:
    """Log-probability [...] of tokens [...] int64 under logits [..., V]; -inf where a token lies outside the kept set.

    The gradient is that of the renormalised distribution with its set held fixed, and finite everywhere.
    """
    kept = processed_logits(logits, settings)
    return kept.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - kept.logsumexp(-1)


def draw(logprobs: Tensor, generators: Sequence[Generator]) -> Tensor:
    """One token [N] int64 for each row of logprobs [N, V], by inversion with one uniform number of the row's own generator.

    A row's token depends on its log-probabilities and its generator only, never on the other rows.
    """
    import torch

    uniform = torch.stack([torch.rand((), generator=generator, dtype=torch.float64) for generator in generators])
    return invert(logprobs, uniform)


def invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The token [N] at which the cumulated probability of logprobs [N, V] passes uniform [N] in [0, 1), float64."""
    import torch

    cumulated = logprobs.double().exp().cumsum(-1)
    # Below 1 by more than float64 rounds away: a token of probability 0 at the end is never reached.
    target = uniform.clamp(max=1 - 2**-40) * cumulated[..., -1]
    return torch.searchsorted(cumulated, target.unsqueeze(-1), right=True).squeeze(-1)


def _nucleus_bound(logits: Tensor, top_p: float) -> Tensor:
    """Smallest logit [..., 1] of the smallest set of most likely tokens whose mass reaches top_p."""
    ordered = logits.sort(dim=-1, descending=True).values
    mass = ordered.softmax(-1).cumsum(-1)
    # A token is kept while the mass before it is below top_p.
    kept = (mass - ordered.softmax(-1) < top_p).sum(-1, keepdim=True).clamp(min=1)
    return ordered.gather(-1, kept - 1)
