"""The output layer of a bfloat16 model: float32 products of the weights as they are, tied ones too, with their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infra.lmhead import exact_head


def make_model(dtype: torch.dtype, tied: bool) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(dtype)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_a_bfloat16_model_are_float32_products_of_its_own_weights(tied: bool) -> None:
    model = make_model(torch.bfloat16, tied)
    ids = torch.tensor([[3, 4, 5, 6]])
    rounded = model(input_ids=ids).logits
    exact_head(model)
    head = model.get_output_embeddings()
    assert head.weight.dtype == torch.bfloat16
    assert (head.weight is model.get_input_embeddings().weight) == tied
    hidden = model.get_decoder()(input_ids=ids).last_hidden_state
    logits = model(input_ids=ids).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden.float() @ head.weight.float().T)
    assert not torch.equal(logits, rounded.float()), "the rounding is gone"
    logits.sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.abs().sum() > 0


def test_constant_weights_give_the_same_logits() -> None:
    ids, one, other = torch.tensor([[3, 4, 5]]), make_model(torch.bfloat16, tied=True), make_model(torch.bfloat16, tied=True)
    exact_head(one)
    exact_head(other, constant=True)
    assert torch.equal(one(input_ids=ids).logits, other(input_ids=ids).logits)


def test_a_float32_model_is_left_as_it_is() -> None:
    model = make_model(torch.float32, tied=True)
    before = model(input_ids=torch.tensor([[3, 4]])).logits
    exact_head(model)
    assert "forward" not in vars(model.get_output_embeddings())
    assert torch.equal(model(input_ids=torch.tensor([[3, 4]])).logits, before)
