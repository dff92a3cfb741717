"""The loss of a role against the vectors of its definition, and against sums written out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.loss import LossRule, correction, effective_share, role_weights, token_loss


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one(now: float, old: float, sampled: float, advantage: float, rule: LossRule, samples: int = 1, **more: Any) -> torch.Tensor:
    return token_loss(
        tensor(now), tensor(old), tensor(sampled), tensor(advantage), torch.zeros(samples, dtype=torch.int64), rule, **more
    ).loss


@pytest.mark.parametrize(
    ("kind", "sampled", "expected"),
    [("truncated", 0.125, -2.0), ("masked", 0.125, -4.0), ("masked", 0.05, 0.0)],
)
def test_published_vectors_of_the_per_token_corrections(kind: Any, sampled: float, expected: float) -> None:
    found = one(math.log(0.5), math.log(0.5), math.log(sampled), 1.0, LossRule(correction=kind))
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_the_sequence_correction_is_five_a_token_for_two_tokens_of_ratio_three() -> None:
    old, sampled = tensor(math.log(0.3), math.log(0.3)), tensor(math.log(0.1), math.log(0.1))
    found = token_loss(old, old, sampled, tensor(1, 1), torch.tensor([0, 0]), LossRule(correction="sequence"))
    assert found.loss.tolist() == pytest.approx([-5.0, -5.0], abs=1e-12)
    assert found.correction.tolist() == pytest.approx([5.0, 5.0], abs=1e-12)


def test_the_sequence_correction_sums_within_a_sample_only() -> None:
    x = tensor(0.5, 0.25, -1.0)
    assert correction(x, torch.tensor([0, 0, 1]), "sequence").tolist() == pytest.approx(
        [math.exp(0.75), math.exp(0.75), math.exp(-1)]
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, -1.28), (1.2, 1.0, -1.2), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.5, -1.0, 1.5), (0.9, -1.0, 0.9)],
)
def test_the_clip_holds_above_for_gains_and_below_for_losses(ratio: float, advantage: float, expected: float) -> None:
    found = one(math.log(ratio) - 1, -1.0, -1.0, advantage, LossRule())
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_the_gradient_vanishes_where_the_clip_binds_and_carries_no_correction_gradient() -> None:
    now = tensor(math.log(1.5) - 1, math.log(1.1) - 1).requires_grad_()
    terms = token_loss(now, tensor(-1, -1), tensor(-2, -2), tensor(1, 1), torch.tensor([0, 1]), LossRule())
    torch.autograd.backward(terms.loss.sum())
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([0.0, -1.1 * 2.0], abs=1e-12)


@pytest.mark.parametrize("kind", ["truncated", "masked", "sequence"])
def test_a_token_outside_the_set_costs_nothing_and_leaves_every_number_finite(kind: Any) -> None:
    infinite = float("-inf")
    now = tensor(infinite, -1.0, -0.5).requires_grad_()
    old = tensor(infinite, -1.0, infinite)
    terms = token_loss(
        now,
        old,
        tensor(-3, -1.5, -1),
        tensor(1e3, 1.0, 1.0),
        torch.tensor([0, 0, 0]),
        LossRule(correction=kind),
        tensor(-1, -1, -1),
    )
    torch.autograd.backward(terms.loss.sum() + terms.kl.sum())
    assert terms.loss[0] == terms.loss[2] == terms.correction[0] == terms.correction[2] == 0
    assert terms.correction[1].item() == pytest.approx(math.exp(0.5))
    assert now.grad is not None
    assert torch.isfinite(now.grad).all()
    assert now.grad[0] == 0


def test_extreme_log_ratios_are_clamped_before_they_are_raised() -> None:
    terms = token_loss(tensor(-1.0), tensor(-1.0), tensor(-1e30), tensor(1.0), torch.tensor([0]), LossRule(correction="masked"))
    assert terms.correction.item() == 0
    far = one(500.0, -500.0, -500.0, -1.0, LossRule())
    assert far.item() == pytest.approx(math.exp(20))


def test_the_divergence_is_the_k3_estimate_and_its_gradient_agrees_with_finite_differences() -> None:
    reference = tensor(-0.7, -2.0)

    def divergence(now: torch.Tensor) -> torch.Tensor:
        return token_loss(now, now.detach(), now.detach(), tensor(0, 0), torch.tensor([0, 1]), LossRule(), reference).kl.sum()

    now = tensor(-1.0, -1.5).requires_grad_()
    gaps = [0.3, -0.5]
    assert divergence(now).item() == pytest.approx(sum(math.exp(gap) - gap - 1 for gap in gaps))
    torch.autograd.backward(divergence(now))
    assert now.grad is not None
    for index in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[index] = 1e-6
        slope = (divergence(now.detach() + step) - divergence(now.detach() - step)) / 2e-6
        assert now.grad[index].item() == pytest.approx(slope.item(), abs=1e-8)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-3, 3), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["truncated", "masked", "sequence"]),
)
def test_the_loss_equals_the_formula_written_out_token_by_token(rows: list[tuple[float, ...]], kind: Any) -> None:
    now, old, sampled, advantage, sample = zip(*rows, strict=True)
    terms = token_loss(
        tensor(*now), tensor(*old), tensor(*sampled), tensor(*advantage), torch.tensor(sample), LossRule(correction=kind)
    )
    for index, (n, o, s, a, which) in enumerate(rows):
        x = o - s
        if kind == "truncated":
            c = min(math.exp(x), 2)
        elif kind == "masked":
            c = math.exp(x) if 0.5 <= math.exp(x) <= 5 else 0.0
        else:
            total = sum(row[1] - row[2] for row in rows if row[4] == which)
            c = min(math.exp(max(min(total, 20), -20)), 5)
        r = math.exp(n - o)
        expected = -min(r * a, min(max(r, 0.8), 1.28) * a) * c
        assert terms.loss[index].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_effective_share_is_one_for_equal_weights_and_falls_with_their_spread() -> None:
    assert effective_share(4.0, 4.0, 4) == 1.0
    assert effective_share(2.0, 4.0, 4) == 0.25
    assert effective_share(0.0, 0.0, 5) == 0.0
    assert effective_share(0.0, 0.0, 0) == 1.0


def test_token_weights_make_each_role_a_mean_over_its_tokens() -> None:
    weights = role_weights([3, 0, 5, 2], ["agent", "agent", "agent", "designer"], "token", {"designer": 0.5})
    assert weights == [1 / 8, 0.0, 1 / 8, 0.25]


def test_sample_weights_make_each_role_a_mean_of_token_means() -> None:
    weights = role_weights([3, 0, 5, 2], ["agent", "agent", "agent", "designer"], "sample", {"designer": 2.0})
    assert weights == [1 / 6, 0.0, 1 / 10, 1.0]
