"""The real DeepSpeed engine against plain torch: same loss, same step, whatever the cut, the stage, or the interruption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.common import SamplingSettings
from schemas.errors import ModelError, SettingsError
from schemas.settings import TrainSettings
from schemas.train import AGENT, DESIGNER
from tests.trainerbatches import TABLE, VOCABULARY, batch, save_model, settings
from trainer.engine import TrainEngine
from trainer.packing import Trajectory
from trainer.publish import canary_tokens, write_policy

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def plain_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def plain_logprobs(model: Any, one: Trajectory, table: Sequence[SamplingSettings]) -> torch.Tensor:
    """By the definition, a token at a time, over full logits."""
    logits = model(torch.tensor(one.tokens[None])).logits[0]
    found = []
    for action, which in zip(one.actions, one.settings, strict=True):
        row, rule = logits[action - 1] / table[which].temperature, table[which]
        ordered = row.argsort(descending=True)
        kept = ordered[: rule.top_k] if rule.top_k else ordered
        shares = row[kept].softmax(-1)
        before = shares.cumsum(-1) - shares
        kept = kept[before < rule.top_p]
        at = (kept == int(one.tokens[action])).nonzero()
        found.append(row[kept].log_softmax(-1)[at[0, 0]] if len(at) else torch.tensor(-math.inf))
    return torch.stack(found)


def plain_loss(
    model: Any,
    trajectories: Sequence[Trajectory],
    rules: TrainSettings,
    table: Sequence[SamplingSettings] = TABLE,
    old: dict[str, torch.Tensor] | None = None,
) -> torch.Tensor:
    total = torch.zeros(())
    for role, scale in ((AGENT, 1.0), (DESIGNER, rules.designer_weight)):
        mine = [one for one in trajectories if one.role == role]
        losses = []
        for one in mine:
            now = plain_logprobs(model, one, table)
            start = old[one.sample_id] if old else now.detach()
            terms = []
            for index in range(len(now)):
                if not torch.isfinite(now[index]) or not torch.isfinite(start[index]):
                    terms.append(torch.zeros(()))
                    continue
                c = min(math.exp(float(start[index]) - float(one.sampled[index])), 2.0)
                r = (now[index] - start[index]).exp()
                terms.append(-torch.min(r * one.advantage, r.clamp(0.8, 1.28) * one.advantage) * c)
            losses.append(torch.stack(terms))
        if losses and rules.aggregate == "token":
            total = total + scale * torch.cat(losses).mean()
        elif losses:
            total = total + scale * torch.stack([loss.mean() for loss in losses]).mean()
    return total


def optimizer_of(model: Any, rules: TrainSettings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rules.learning_rate, betas=rules.betas, weight_decay=rules.weight_decay)


def distance(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name].float() - right[name].float()).abs().max()) for name in left)


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregate": "sample", "designer_weight": 0.5},
        {"zero_stage": 0},
        {"zero_stage": 2, "offload": "optimizer"},
        {"zero_stage": 3, "packing": "packed", "activation_checkpointing": True},
        {"packing": "packed"},
        {"packing": "packed", "micro_batch_tokens": 100_000},
    ],
)
def test_a_step_is_that_of_plain_torch(folder: Path, changes: dict[str, Any]) -> None:
    rules = settings(**changes)
    engine, model = TrainEngine(folder, rules), plain_model(folder)
    before = weights_of(model)
    optimizer = optimizer_of(model, rules)
    for seed in range(2):
        outcome = engine.train(batch(seed), TABLE)
        loss = plain_loss(model, batch(seed), rules)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), rules.max_grad_norm)
        optimizer.step()
        assert outcome.loss == pytest.approx(loss.item(), abs=1e-5)
        assert outcome.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert distance(engine.weights(), before) > rules.learning_rate
    assert distance(engine.weights(), weights_of(model)) < 0.05 * rules.learning_rate


def test_plain_logits_are_those_of_temperature_one_without_truncation(folder: Path) -> None:
    rules = settings(logits="plain")
    found = TrainEngine(folder, rules).train(batch(), TABLE)
    expected = plain_loss(plain_model(folder), batch(), rules, [SamplingSettings()] * 2)
    assert found.loss == pytest.approx(expected.item(), abs=1e-5)


def test_the_cut_into_micro_batches_does_not_change_the_step(folder: Path) -> None:
    engines = [TrainEngine(folder, settings(micro_batch_tokens=size)) for size in (64, 100_000)]
    outcomes = [engine.train(batch(), TABLE) for engine in engines]
    assert outcomes[0].loss == pytest.approx(outcomes[1].loss, abs=1e-6)
    assert outcomes[0].grad_norm == pytest.approx(outcomes[1].grad_norm, rel=1e-5)
    assert distance(engines[0].weights(), engines[1].weights()) < 0.02 * settings().learning_rate
    for role in (AGENT, DESIGNER):
        left, right = (outcome.roles[role] for outcome in outcomes)
        assert (left.samples, left.tokens, left.lag_max) == (right.samples, right.tokens, right.lag_max)
        assert (left.loss, left.ess, left.entropy) == pytest.approx((right.loss, right.ess, right.entropy), rel=1e-4)


def test_activation_checkpointing_changes_no_bit(folder: Path) -> None:
    engines = [TrainEngine(folder, settings(activation_checkpointing=asked)) for asked in (False, True)]
    outcomes = [engine.train(batch(), TABLE) for engine in engines]
    assert outcomes[0].loss == outcomes[1].loss
    assert outcomes[0].grad_norm == outcomes[1].grad_norm
    assert distance(engines[0].weights(), engines[1].weights()) == 0


@pytest.mark.parametrize("changes", [{}, {"zero_stage": 0}, {"zero_stage": 2}, {"zero_stage": 3}, {"lora_rank": 4}])
def test_a_resumed_engine_goes_on_bit_for_bit(folder: Path, changes: dict[str, Any]) -> None:
    engine = TrainEngine(folder, settings(**changes))
    engine.train(batch(0), TABLE)
    kept = engine.state()
    resumed = TrainEngine(folder, settings(**changes), seed=9)
    resumed.load_state(kept)
    for seed in (1, 2):
        assert engine.train(batch(seed), TABLE).loss == resumed.train(batch(seed), TABLE).loss
    left, right = engine.state(), resumed.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    engine.load_state(kept)  # and back again in place
    assert all(torch.equal(engine.state()[name], kept[name]) for name in kept)


def test_a_checkpoint_of_one_zero_stage_is_that_of_another(folder: Path) -> None:
    first = TrainEngine(folder, settings(zero_stage=1))
    first.train(batch(0), TABLE)
    kept = first.state()
    for stage in (0, 2, 3):
        other = TrainEngine(folder, settings(zero_stage=stage))
        other.load_state(kept)
        again = other.state()
        assert again.keys() == kept.keys()
        assert all(torch.equal(again[name], kept[name]) for name in kept), stage


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_non_finite_batch_changes_nothing_and_the_next_step_is_unharmed(folder: Path, stage: int) -> None:
    calm, hit = (TrainEngine(folder, settings(zero_stage=stage)) for _ in range(2))
    calm.train(batch(0), TABLE)
    hit.train(batch(0), TABLE)
    before = hit.weights()
    poisoned = [*batch(5)[:-1], Trajectory(**{**vars(batch(5)[-1]), "advantage": math.nan})]
    assert hit.train(poisoned, TABLE).skipped == "non-finite loss"
    assert distance(before, hit.weights()) == 0
    assert calm.train(batch(1), TABLE).loss == hit.train(batch(1), TABLE).loss
    assert distance(calm.weights(), hit.weights()) == 0


def test_several_minibatches_clip_against_the_policy_at_the_start_of_the_batch(folder: Path) -> None:
    rules = settings(minibatches=2, learning_rate=5e-3)
    engine, model = TrainEngine(folder, rules), plain_model(folder)
    outcome = engine.train(batch(), TABLE)
    with torch.no_grad():
        old = {one.sample_id: plain_logprobs(model, one, TABLE) for one in batch()}
    optimizer, losses = optimizer_of(model, rules), []
    for part in range(2):
        loss = plain_loss(model, batch()[part::2], rules, old=old)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), rules.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
    assert outcome.loss == pytest.approx(sum(losses) / 2, abs=1e-4)
    assert distance(engine.weights(), weights_of(model)) < 0.05 * rules.learning_rate


def test_several_minibatches_of_which_one_is_not_finite_leave_what_was_before(folder: Path) -> None:
    engine = TrainEngine(folder, settings(minibatches=2))
    engine.train(batch(0), TABLE)
    before = engine.state()
    poisoned = [*batch(5)[:1], Trajectory(**{**vars(batch(5)[1]), "advantage": math.nan}), *batch(5)[2:]]
    assert engine.train(poisoned, TABLE).skipped == "non-finite loss"
    after = engine.state()
    assert all(torch.equal(before[name], after[name]) for name in before if name != "random")


def test_adapters_alone_are_trained_and_what_is_published_is_merged(folder: Path, tmp_path: Path) -> None:
    rules = settings(lora_rank=4, lora_alpha=8, learning_rate=1e-2)
    engine, plain = TrainEngine(folder, rules), weights_of(plain_model(folder))
    assert distance(engine.weights(), plain) == 0, "adapters begin without effect, under the model's own names"
    for seed in range(2):
        engine.train(batch(seed), TABLE)
    state, found = engine.state(), engine.weights()
    assert all(".lora_" in name for name in state if name.startswith(("weight/", "exp_avg"))), "frozen weights are the folder's"
    name = "model.layers.1.self_attn.k_proj"
    up, down = (state[f"weight/{name}.lora_{part}.default.weight"] for part in "BA")
    expected = plain[f"{name}.weight"] + 2.0 * up @ down
    assert (found[f"{name}.weight"] - expected).abs().max() < 1e-7
    assert (found[f"{name}.weight"] - plain[f"{name}.weight"]).abs().max() > 1e-4
    assert torch.equal(found["model.embed_tokens.weight"], plain["model.embed_tokens.weight"])
    write_policy(tmp_path, folder, found, "float32")
    tokens = canary_tokens(VOCABULARY, 4)
    assert TrainEngine(tmp_path, settings()).canary(tokens) == pytest.approx(engine.canary(tokens), abs=1e-5)


def test_adapters_take_the_gradient_of_the_merged_weights(folder: Path) -> None:
    engine, model = TrainEngine(folder, settings(lora_rank=4)), plain_model(folder)
    kept = engine.state()
    outcome = engine.train(batch(), TABLE)
    torch.autograd.backward(plain_loss(model, batch(), settings()))
    # dL/dB = scale * dL/dW A^T, and A has none while B is 0.
    squares = 0.0
    for name in (name for name in kept if ".lora_A." in name):
        layer = name.removeprefix("weight/").partition(".lora_A.")[0]
        slope = model.get_submodule(layer).weight.grad
        squares += float((32 / 4 * slope @ kept[name].T).square().sum())
    assert outcome.grad_norm == pytest.approx(math.sqrt(squares), rel=1e-4)


def test_targets_that_no_layer_bears_are_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"train\.lora_targets \(no_such_layer\)"):
        TrainEngine(folder, settings(lora_rank=4, lora_targets=("no_such_layer",)))


def test_an_empty_batch_and_a_batch_of_zero_advantages_leave_the_weights(folder: Path) -> None:
    engine = TrainEngine(folder, settings())
    before = engine.weights()
    assert engine.train([], []).loss == 0
    flat = [Trajectory(**{**vars(one), "advantage": 0.0}) for one in batch()]
    outcome = engine.train(flat, TABLE)
    assert outcome.loss == 0
    assert outcome.roles[AGENT].tokens > 0
    assert outcome.roles[AGENT].entropy > 0
    assert distance(before, engine.weights()) == 0


def test_the_divergence_term_is_zero_at_the_reference_and_pulls_back_from_elsewhere(folder: Path) -> None:
    engine = TrainEngine(folder, settings(kl_beta=10.0, weight_decay=0), reference=folder)
    flat = [Trajectory(**{**vars(one), "advantage": 0.0}) for one in batch()]
    assert engine.train(flat, TABLE).loss == pytest.approx(0, abs=1e-9)
    engine.train(batch(), TABLE)
    away = engine.train(flat, TABLE)
    assert away.loss > 1e-7
    back = [engine.train(flat, TABLE).loss for _ in range(6)]
    assert min(back) < away.loss


def test_bfloat16_trains_and_resumes_bit_for_bit(folder: Path) -> None:
    engine, resumed = (TrainEngine(folder, settings(dtype="bfloat16")) for _ in range(2))
    before = engine.weights()
    assert not engine.train(batch(0), TABLE).skipped
    assert distance(before, engine.weights()) > 0
    assert {tensor.dtype for tensor in engine.weights().values()} == {torch.bfloat16}
    resumed.load_state(engine.state())
    assert engine.train(batch(1), TABLE).loss == resumed.train(batch(1), TABLE).loss
    assert distance(engine.weights(), resumed.weights()) == 0


def test_the_canary_is_a_full_plain_forward(folder: Path) -> None:
    tokens = canary_tokens(VOCABULARY, 4)
    with torch.no_grad():
        rows = plain_model(folder)(torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = [float(rows[index, token]) for index, token in enumerate(tokens[1:])]
    assert TrainEngine(folder, settings()).canary(tokens) == pytest.approx(expected, abs=1e-5)
    assert canary_tokens(VOCABULARY, 5) != tokens == canary_tokens(VOCABULARY, 4)


def test_a_step_can_be_given_up_between_forward_passes(folder: Path) -> None:
    engine = TrainEngine(folder, settings())
    before, calls = engine.weights(), []

    def between() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        engine.train(batch(), TABLE, between)
    assert distance(before, engine.weights()) == 0


def test_a_model_that_lacks_a_weight_is_refused(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the weight model\.norm\.weight"):
        TrainEngine(tmp_path, settings())
