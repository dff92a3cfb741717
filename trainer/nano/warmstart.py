"""The warm start: Muon and AdamW over samples of the writer, loss on the model's own tokens only.

In: a model, a dialect, a plan, a team of processes. Out: the trained model (in place) and progress lines. Bound by steps and
seeded, so that the same machine and process count give the same weights. Called by the build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from infra.dialects.nano import PAD, NanoDialect
from trainer.nano.muon import Muon
from trainer.nano.team import Team
from trainer.nano.writer import Sample, Writer

POOL = 512
"""Samples that are drawn together and sorted by length before they are cut into batches, so that little is padded."""


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train."""

    steps: int
    batch_tokens: int = 1536
    """Tokens of a batch, padding included."""
    design_share: float = 0.18
    """Share of samples that are designs; they are about three times as long as plays."""
    careful_share: float = 0.6
    """Share of the steps in which every player shows its working. Only then the habits are taught that hints overcome: an answer
    that is given without working is mostly noise to learn from."""
    near_share: float = 0.0
    """Share of the steps in which only small sizes are played."""
    matrix_rate: float = 0.015
    """Muon's learning rate, for the matrices of the layers."""
    other_rate: float = 4e-3
    """AdamW's learning rate, for embeddings and norms."""
    warmup_steps: int = 30
    decay_share: float = 0.5
    clip_norm: float = 1.0


def plan_stages(steps: int) -> tuple[Plan, ...]:
    """Three cycles over this many steps, each from a lower rate; the last teaches habits only, and designs more often."""
    first, second = steps * 40 // 91, steps * 35 // 91
    return (
        Plan(steps=first, near_share=0.6),
        Plan(steps=second, careful_share=0.5, matrix_rate=0.012, other_rate=3e-3, decay_share=0.75),
        Plan(
            steps=steps - first - second,
            careful_share=0.0,
            design_share=0.22,
            matrix_rate=0.009,
            other_rate=2e-3,
            decay_share=0.9,
        ),
    )


def draw_batches(rng: Random, writer: Writer, plan: Plan) -> Iterator[list[Sample]]:
    """Batches of samples of like length, for ever; habits come in after the plan's share of batches."""
    drawn = 0
    while True:
        habits, near = drawn >= plan.careful_share * plan.steps, drawn < plan.near_share * plan.steps
        pool = [writer.design(rng) if rng.random() < plan.design_share else writer.play(rng, habits, near) for _ in range(POOL)]
        pool.sort(key=lambda sample: len(sample.token_ids))
        batches: list[list[Sample]] = []
        batch: list[Sample] = []
        for sample in pool:
            if batch and (len(batch) + 1) * len(sample.token_ids) > plan.batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(sample)
        batches.append(batch)
        rng.shuffle(batches)
        drawn += len(batches)
        yield from batches


def batch_loss(model: Any, batch: list[Sample], written: int) -> Any:
    """Cross-entropy over the written tokens of `batch` (at least one sample), as a scalar tensor: nats, over `written` tokens, so
    that the losses of a batch's parts add up to the whole batch's mean."""
    import torch

    width = max(len(sample.token_ids) for sample in batch)
    ids = torch.full((len(batch), width), PAD, dtype=torch.long)
    targets = torch.full((len(batch), width), -100, dtype=torch.long)
    for row, sample in enumerate(batch):
        length = len(sample.token_ids)
        ids[row, :length] = torch.tensor(sample.token_ids)
        own = torch.tensor(sample.written)
        targets[row, :length] = torch.where(own, ids[row, :length], -100)
    # Padding stands on the right and the mask is causal, so no written token sees it: no attention mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = targets[:, 1:]
    chosen = wanted != -100
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), wanted[chosen], reduction="sum") / written


def scale_of(plan: Plan, step: int) -> float:
    """The learning rate's share at a step: linear warm-up, flat, then a linear fall to 2 % over the last `decay_share`."""
    done = step / plan.steps
    fall = min(1.0, (1 - done) / plan.decay_share)
    return min(1.0, (step + 1) / plan.warmup_steps) * (0.02 + 0.98 * fall)


def warm_start(model: Any, dialect: NanoDialect, plan: Plan, seed: int, team: Team, tell: Callable[[str], None]) -> None:
    """Trains the model in place: each process its part of every batch, then all the same update. Blocks for the whole run; `tell`
    gets a line every hundred steps. Raises ModelError where another process of the team is gone."""
    import torch

    batches = draw_batches(Random(seed), Writer(dialect), plan)
    matrices = [each for name, each in model.named_parameters() if each.dim() == 2 and "embed" not in name]
    others = [each for name, each in model.named_parameters() if each.dim() != 2 or "embed" in name]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    loss_sum, tokens = 0.0, 0
    for step in range(plan.steps):
        batch = next(batches)
        share = scale_of(plan, step)
        muon.lr = plan.matrix_rate * share
        adam.param_groups[0]["lr"] = plan.other_rate * share
        # a token's first position is never a target
        written = sum(sum(sample.written[1:]) for sample in batch)
        own = batch[team.rank :: team.size]
        loss = batch_loss(model, own, written) if own else 0.0 * model.lm_head.weight.sum()
        loss.backward()
        loss_sum += team.add_gradients(model, float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
        muon.step()
        adam.step()
        adam.zero_grad(set_to_none=True)
        tokens += sum(len(sample.token_ids) for sample in batch)
        if (step + 1) % 100 == 0:
            tell(f"warm start: step {step + 1} of {plan.steps}, loss {loss_sum / 100:.3f}, {tokens / 1e6:.2f} M tokens")
            loss_sum = 0.0
    model.eval()
