"""The distribution that sampler and trainer share, against definitions written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.sampling import draw, invert, processed_logprobs, token_logprobs
from schemas.common import SamplingSettings

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def probabilities(**settings_: float) -> list[float]:
    values = SamplingSettings(**settings_)  # type: ignore[arg-type]  # top_k is an int among floats
    return processed_logprobs(LOGITS, values).exp()[0].tolist()


def test_untouched_settings_give_the_softmax() -> None:
    assert probabilities() == pytest.approx([0.5, 0.25, 0.15, 0.1])


def test_temperature_divides_the_logits() -> None:
    squares = [p * p for p in (0.5, 0.25, 0.15, 0.1)]
    assert probabilities(temperature=0.5) == pytest.approx([square / sum(squares) for square in squares])


def test_top_k_keeps_the_k_most_likely_and_renormalises() -> None:
    assert probabilities(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probabilities(top_k=9) == pytest.approx([0.5, 0.25, 0.15, 0.1])


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    assert probabilities(top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probabilities(top_p=0.76) == pytest.approx([5 / 9, 2.5 / 9, 1.5 / 9, 0])
    assert probabilities(top_p=1e-9) == pytest.approx([1, 0, 0, 0])


def test_top_k_comes_before_top_p() -> None:
    # Of the two kept by top-k the first has 2/3 of the mass, so that top-p .6 keeps it alone.
    assert probabilities(top_k=2, top_p=0.6) == pytest.approx([1, 0, 0, 0])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([0.3, 0.6, 1.0, 1.7]), st.sampled_from([0.2, 0.9, 1.0]), st.sampled_from([0, 1, 3])
)
def test_token_logprobs_are_rows_of_the_processed_distribution(seed: int, temperature: float, top_p: float, top_k: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits, tokens = torch.randn(5, 11, generator=random) * 4, torch.randint(0, 11, (5,), generator=random)
    values = SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k)
    whole = processed_logprobs(logits, values)
    assert whole.exp().sum(-1) == pytest.approx(torch.ones(5))
    chosen = whole[torch.arange(5), tokens]
    found = token_logprobs(logits, tokens, values)
    assert torch.equal(torch.isinf(found), torch.isinf(chosen))
    assert torch.allclose(found[~torch.isinf(found)], chosen[~torch.isinf(chosen)], atol=1e-5)


def test_the_gradient_is_finite_for_a_token_outside_the_set() -> None:
    logits = LOGITS.clone().requires_grad_()
    found = token_logprobs(logits, torch.tensor([3]), SamplingSettings(top_k=2))
    assert found.item() == -math.inf
    torch.autograd.backward(torch.where(torch.isfinite(found), found, torch.zeros(1)).sum())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_a_drawn_token_is_never_one_of_probability_zero_even_at_the_ends() -> None:
    logprobs = torch.log(torch.tensor([[0.0, 0.25, 0.75, 0.0]])).repeat(4, 1)
    uniform = torch.tensor([0.0, 0.2499, 0.2501, 1 - 2**-53], dtype=torch.float64)
    assert invert(logprobs, uniform).tolist() == [1, 1, 2, 2]


def test_a_row_draws_the_same_token_whatever_its_neighbours() -> None:
    logprobs = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    together = draw(logprobs, [torch.Generator().manual_seed(seed) for seed in range(6)])
    alone = [draw(logprobs[seed : seed + 1], [torch.Generator().manual_seed(seed)]).item() for seed in range(6)]
    assert together.tolist() == alone


def test_drawn_frequencies_follow_the_distribution() -> None:
    generator = torch.Generator().manual_seed(3)
    uniform = torch.rand(20_000, generator=generator, dtype=torch.float64)
    tokens = invert(LOGITS.log_softmax(-1).expand(20_000, 4), uniform)
    shares = torch.bincount(tokens, minlength=4) / 20_000
    assert shares.tolist() == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.012)
