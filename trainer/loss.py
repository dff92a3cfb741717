"""The policy-gradient loss of one batch, token by token, and what is told about it.

In: flat tensors over the action tokens of a micro batch. Out: the loss to differentiate, and what the statistics need.
Called by trainer/engine. Formulas: docs/ARCHITECTURE.md, after GRPO with decoupled clip (DAPO) and an importance correction for
samplers that are behind; what differs from the textbook: the correction c stands beside the clipped ratio and has no gradient.

    r    = exp(logp_now - logp_old)
    loss = -min(r A, clip(r, 1 - low, 1 + high) A) * c
    x    = logp_old - logp_sampled, clamped to +-20
    c    = min(exp x, 2)                          truncated
           exp x where .5 <= exp x <= 5, else 0   masked
           min(exp(sum of x over the sample), 5)  sequence

A token that the present policy can't draw (outside top-k or top-p: log-probability -inf) is left out by where: its loss and c are
0, it is no part of a sample's sum, and no infinity enters a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Correction = Literal["truncated", "masked", "sequence"]
LOG_RATIO_LIMIT = 20.0
TRUNCATED_AT = 2.0
MASKED_BELOW, MASKED_ABOVE = 0.5, 5.0
SEQUENCE_AT = 5.0


@dataclass(frozen=True)
class LossRule:
    """Which loss; fields as in TrainSettings."""

    correction: Correction = "truncated"
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_beta: float = 0.0


@dataclass(frozen=True)
class TokenLoss:
    """One value an action token, [n] each."""

    loss: Tensor  # of the role, before weights; 0 where the token can't be drawn
    kl: Tensor  # k3 against the reference, 0 where there is none
    correction: Tensor  # c, without gradient
    log_ratio: Tensor  # x before the clamp, 0 where the token can't be drawn; without gradient
    drawable: Tensor  # bool


def token_loss(
    now: Tensor,
    old: Tensor,
    sampled: Tensor,
    advantage: Tensor,
    sample: Tensor,
    rule: LossRule,
    reference: Tensor | None = None,
) -> TokenLoss:
    """Losses [n] from log-probabilities [n] of the same tokens now, at the start of the batch, and when they were sampled.

    advantage [n] is the sample's; sample [n] int64 numbers the samples, whose tokens are all here; reference [n] is a frozen
    policy's log-probability. Gradient flows through `now` only.
    """
    import torch

    drawable = torch.isfinite(now.detach()) & torch.isfinite(old)
    zero = now.new_zeros(())
    safe_now = torch.where(drawable, now, zero)
    safe_old = torch.where(drawable, old, zero).detach()
    log_ratio = torch.where(drawable, safe_old - sampled, zero)
    weight = torch.where(drawable, correction(log_ratio, sample, rule.correction), zero)
    ratio = (safe_now - safe_old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    clipped = ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
    loss = -torch.minimum(ratio * advantage, clipped * advantage) * weight
    return TokenLoss(
        loss=torch.where(drawable, loss, zero),
        kl=_k3(safe_now, reference, drawable) if reference is not None else torch.zeros_like(log_ratio),
        correction=weight,
        log_ratio=log_ratio,
        drawable=drawable,
    )


def correction(log_ratio: Tensor, sample: Tensor, kind: Correction) -> Tensor:
    """c [n] from x [n]; x is clamped to +-20 before exp, and its sum over a sample once more."""
    import torch

    clamped = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if kind == "sequence":
        count = int(sample.max()) + 1 if sample.numel() else 0
        sums = clamped.new_zeros(count).index_add(0, sample, clamped)
        return sums.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=SEQUENCE_AT)[sample]
    ratio = clamped.exp()
    if kind == "truncated":
        return ratio.clamp(max=TRUNCATED_AT)
    kept = (ratio >= MASKED_BELOW) & (ratio <= MASKED_ABOVE)
    return torch.where(kept, ratio, ratio.new_zeros(()))


def _k3(now: Tensor, reference: Tensor, drawable: Tensor) -> Tensor:
    """The low-variance estimate of KL(now || reference): exp(d) - d - 1 with d = reference - now; 0 where either is -inf."""
    import torch

    zero = now.new_zeros(())
    known = drawable & torch.isfinite(reference)
    gap = torch.where(known, reference.detach() - now, zero).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return gap.exp() - gap - 1


def role_weights(lengths: list[int], roles: list[str], aggregate: str, scale: dict[str, float]) -> list[float]:
    """The weight of each sample's tokens in the batch's loss: a role's loss is a mean, and the sum over all tokens the whole.

    token: scale / (tokens of the role); sample: scale / (samples of the role * tokens of the sample). No token: 0.
    """
    tokens = {role: sum(n for n, r in zip(lengths, roles, strict=True) if r == role) for role in set(roles)}
    samples = {role: sum(n > 0 for n, r in zip(lengths, roles, strict=True) if r == role) for role in set(roles)}
    weights = []
    for length, role in zip(lengths, roles, strict=True):
        share = tokens[role] if aggregate == "token" else samples[role] * length
        weights.append(scale.get(role, 1.0) / share if length else 0.0)
    return weights


def effective_share(total: float, squares: float, count: int) -> float:
    """ESS of a role: (sum c)^2 / (n sum c^2) over n tokens; 1 without a token, 0 where every c is 0."""
    if count == 0:
        return 1.0
    return total * total / (count * squares) if squares > 0 else 0.0
