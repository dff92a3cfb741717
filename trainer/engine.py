"""The DeepSpeed engine of the trainer: one call is one step over a whole batch, its state goes in and out as plain tensors.

In: a policy's folder and TrainSettings; trajectories. Out: a StepOutcome; weights and optimizer state. Called by trainer/loop,
and in further processes by trainer/follower. The gradient is that of the batch's loss however it is cut: each micro batch's share
is weighted by the batch's own counts and accumulated, DeepSpeed steps once (managed_gradient_accumulation off). A non-finite loss
or gradient is not applied. Where several processes share a step, each calls the same methods with the same arguments in the same
order, trains its part of the batch (trainer/shares), and gets the whole's outcome; what comes out as tensors is whole in rank 0.
Nothing here waits for anything but the computation, and then for the other processes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from schemas.common import SamplingSettings
from schemas.settings import TrainSettings
from schemas.train import AGENT, DESIGNER, RoleStats
from trainer.adapters import adapted_layer, add_adapters, is_adapter, merged, plain_name
from trainer.attention import use_packed_attention
from trainer.loss import LossRule, role_weights, token_loss
from trainer.model import PLAIN, PolicyModule, action_logprobs, load_language_model, text_logprobs
from trainer.packing import MicroBatch, Trajectory, pack
from trainer.shards import FromLead, Shard, find_shards, gather, put_back
from trainer.tally import RoleTally, add_up, open_tallies
from trainer.zero import gathered, known_warnings, start_deepspeed

WEIGHT, RANDOM = "weight", "random"


@dataclass
class StepOutcome:
    """What a step did."""

    loss: float = 0.0
    grad_norm: float = 0.0
    skipped: str = ""
    roles: dict[str, RoleStats] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"forward": 0.0, "backward": 0.0, "step": 0.0})


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] += time.perf_counter() - started


class TrainEngine:
    """A policy under training. `reference` is the folder of the frozen policy of the KL term, needed where kl_beta > 0."""

    def __init__(self, folder: Path, settings: TrainSettings, seed: int = 0, reference: Path | None = None) -> None:
        torch.set_num_threads(settings.threads)
        torch.manual_seed(seed)
        self.settings = settings
        self.rule = LossRule(
            correction=settings.correction, clip_low=settings.clip_low, clip_high=settings.clip_high, kl_beta=settings.kl_beta
        )
        self._scale = {AGENT: 1.0, DESIGNER: settings.designer_weight}
        self._reference: PolicyModule | None = None
        if settings.kl_beta > 0:
            self._reference = PolicyModule(self._load(reference or folder)).to(settings.device)
        self.language_model = self._load(folder)
        if settings.lora_rank:
            add_adapters(self.language_model, settings)
        self._named = list(self.language_model.named_parameters())
        self._trained = [(name, parameter) for name, parameter in self._named if parameter.requires_grad]
        self._engine = start_deepspeed(PolicyModule(self.language_model), settings)
        self._world, self._rank = distributed.get_world_size(), distributed.get_rank()
        if self._world > 1 and self._is_plain:
            self._engine.enable_backward_allreduce = False  # it is done here, so that the step can still be refused
        self._quieten()

    def _load(self, folder: Path) -> Any:
        model = load_language_model(folder, self.settings.dtype)
        if self.settings.packing == "packed":
            use_packed_attention(model)
        return model

    def _quieten(self) -> None:
        """No dropout: the sampler had none. Transformers checkpoints activations in training mode only."""
        self.language_model.eval()
        if not self.settings.activation_checkpointing:
            return
        self.language_model.gradient_checkpointing_enable({"use_reentrant": False})
        self.language_model.train()
        for module in self.language_model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0

    @property
    def _is_plain(self) -> bool:
        """Whether torch's optimizer steps the parameters themselves."""
        return self.settings.zero_stage == 0 and self.settings.dtype == "float32"

    def check(self) -> None:
        """Raises TrainingError where another process of the trainer has ended; alone there is none."""

    def train(
        self, trajectories: Sequence[Trajectory], table: Sequence[SamplingSettings], between: Callable[[], None] = lambda: None
    ) -> StepOutcome:
        """One step over the batch; `between` is called before each forward pass and may raise to give the step up.

        After such a raise the engine must not be used again. An empty batch changes nothing and has loss 0.
        """
        outcome = StepOutcome()
        tallies = open_tallies(trajectories)
        parts = min(self.settings.minibatches, max(len(trajectories), 1))
        before = TrainEngine.state(self) if parts > 1 else {}
        table = table if self.settings.logits == "sampler" else [PLAIN] * len(table)
        micros = [self._pack(trajectories, range(part, len(trajectories), parts)) for part in range(parts)]
        old = self._start_logprobs(micros, table, outcome, between) if parts > 1 else {}
        for group in micros:
            before_loss = outcome.loss
            self._accumulate(group, table, old, outcome, tallies, between, 1.0 / parts)
            if self._world > 1:
                outcome.loss = before_loss + self._sum(outcome.loss - before_loss)
            if not math.isfinite(outcome.loss):
                outcome.skipped = "non-finite loss"
            with _timed(outcome.seconds, "step"):
                if any(micro.gradient for micro in group) and not self._apply(outcome):
                    outcome.skipped = outcome.skipped or "non-finite gradient"
            if outcome.skipped:
                if before:
                    TrainEngine.load_state(self, FromLead(before) if self._world > 1 else before)
                break
        if self._world > 1:
            add_up(tallies)
        outcome.roles = {role: tally.stats() for role, tally in tallies.items()}
        return outcome

    def _pack(self, trajectories: Sequence[Trajectory], chosen: Sequence[int]) -> list[MicroBatch]:
        weights = [0.0] * len(trajectories)
        lengths, roles = [len(trajectories[i].actions) for i in chosen], [trajectories[i].role for i in chosen]
        for position, weight in zip(chosen, role_weights(lengths, roles, self.settings.aggregate, self._scale), strict=True):
            weights[position] = weight
        micros = pack(
            trajectories,
            weights,
            chosen,
            self.settings.micro_batch_tokens,
            all_gradients=self.settings.kl_beta > 0,
            packed=self.settings.packing == "packed",
            rank=self._rank,
            world=self._world,
        )
        return [micro.on(self.settings.device) for micro in micros]

    def _start_logprobs(
        self,
        micros: Sequence[Sequence[MicroBatch]],
        table: Sequence[SamplingSettings],
        outcome: StepOutcome,
        between: Callable[[], None],
    ) -> dict[int, torch.Tensor]:
        """Log-probabilities of every micro batch (by identity) before the first of several optimizer steps."""
        found = {}
        for micro in (micro for group in micros for micro in group):
            between()
            with _timed(outcome.seconds, "forward"), torch.no_grad():
                found[id(micro)] = action_logprobs(self._logits(micro), micro, table)
        return found

    def _logits(self, micro: MicroBatch) -> torch.Tensor:
        found: torch.Tensor = self._engine(micro.ids, micro.row, micro.column, micro.place, micro.bounds)
        return found

    def _accumulate(
        self,
        micros: Sequence[MicroBatch],
        table: Sequence[SamplingSettings],
        old: dict[int, torch.Tensor],
        outcome: StepOutcome,
        tallies: dict[str, RoleTally],
        between: Callable[[], None],
        share: float,
    ) -> None:
        """Forward and backward of one optimizer step; adds to the outcome's loss and to the tallies."""
        kl_weight = self.settings.kl_beta / max(int(self._sum(sum(len(micro.target) for micro in micros if micro.index))), 1)
        for micro in micros:
            between()
            if not micro.index:
                self._pass_by(micro, outcome)
                continue
            with _timed(outcome.seconds, "forward"), torch.set_grad_enabled(micro.gradient):
                now = action_logprobs(self._logits(micro), micro, table)
                terms = token_loss(
                    now,
                    old.get(id(micro), now.detach()),
                    micro.sampled,
                    micro.advantage,
                    micro.sample,
                    self.rule,
                    self._reference_logprobs(micro, table),
                )
                weighted = terms.loss * micro.weight
                loss = weighted.sum() + kl_weight * terms.kl.sum()
            value = float(loss.detach())
            outcome.loss += value * share
            if micro.gradient:
                with _timed(outcome.seconds, "backward"):
                    # Gradients are averaged over the processes, and this is a sum.
                    loss = loss * self._world if self._world > 1 else loss
                    # A non-finite loss must reach the gradients, so that the optimizer refuses the step and clears them.
                    self._engine.backward(loss if math.isfinite(value) else loss * math.nan)
            self._count(micro, weighted.detach() * share, terms, now.detach(), tallies)

    def _pass_by(self, micro: MicroBatch, outcome: StepOutcome) -> None:
        """A pass without a sample, so that this process takes part in the others' collectives."""
        with _timed(outcome.seconds, "forward"), torch.set_grad_enabled(micro.gradient):
            loss = self._logits(micro).sum() * 0.0
        if micro.gradient:
            with _timed(outcome.seconds, "backward"):
                self._engine.backward(loss)

    def _sum(self, value: float) -> float:
        """The sum over the processes."""
        if self._world == 1:
            return value
        both = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(both)
        return float(both)

    def _count(
        self, micro: MicroBatch, weighted: torch.Tensor, terms: Any, now: torch.Tensor, tallies: dict[str, RoleTally]
    ) -> None:
        for role in set(micro.roles):
            mine = torch.tensor([found == role for found in micro.roles], device=micro.sample.device)[micro.sample]
            scale = self._scale.get(role, 1.0)
            tallies[role].add(mine, weighted / scale if scale else weighted, terms, now)

    def _reference_logprobs(self, micro: MicroBatch, table: Sequence[SamplingSettings]) -> torch.Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            logits = self._reference(micro.ids, micro.row, micro.column, micro.place, micro.bounds)
            return action_logprobs(logits, micro, table)

    def _apply(self, outcome: StepOutcome) -> bool:
        """Clips, steps and clears the gradients; False where a gradient was not finite, and nothing changed."""
        if self._is_plain:
            if self._world > 1:
                self._average_gradients()
            gradients = [parameter.grad for _, parameter in self._trained if parameter.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
            outcome.grad_norm = float(norm)
            if not math.isfinite(outcome.grad_norm):
                self._engine.zero_grad()
                return False
            self._engine.step()
            return True
        with known_warnings():
            self._engine.step()
        outcome.grad_norm = float(self._engine.get_global_grad_norm() or 0.0)
        return bool(self._engine.was_step_applied())

    def _average_gradients(self) -> None:
        """ZeRO stage 0: each process has all gradients of its part of the batch."""
        for _, parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self._world

    def canary(self, tokens: Sequence[int]) -> list[float]:
        """The model's own log-probabilities of tokens[1:], plain; from a full forward, not from the training path."""
        with gathered(self.settings.zero_stage, [parameter for _, parameter in self._named]):
            return text_logprobs(self.language_model, tokens)

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the weights by their transformers names, tied ones once, in the training dtype; adapters are merged in."""
        found = {}
        for name, parameter in self._named:
            if is_adapter(name):
                continue
            layer = adapted_layer(self.language_model, name)
            with gathered(self.settings.zero_stage, list(layer.parameters()) if layer else [parameter]):
                found[plain_name(name)] = (merged(parameter, layer) if layer else parameter.detach()).to("cpu", copy=True)
        kept = self.language_model.state_dict().keys()
        buffers = {name: value.detach().clone() for name, value in self.language_model.named_buffers() if name in kept}
        return {**found, **buffers}

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, by parameter: weights, float32 masters, optimizer state; random state.

        The same names and tensors at any ZeRO stage and number of processes. Frozen weights are left out: they are the folder's.
        """
        found = {}
        for name, parameter in self._trained:
            with gathered(self.settings.zero_stage, [parameter]):
                found[f"{WEIGHT}/{name}"] = parameter.detach().to("cpu", copy=True)
        # In float32 the master is the weight.
        found.update(gather(self._shards(), self._engine.optimizer, masters=self.settings.dtype != "float32"))
        found[RANDOM] = torch.get_rng_state()
        return found

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Puts back what `state` gave, from an engine of the same model; bit for bit at the same dtype.

        Asks for each tensor once and in one order, so that a mapping may fetch it from rank 0.
        """
        with torch.no_grad():
            for name, parameter in self._trained:
                weight = state[f"{WEIGHT}/{name}"]
                with gathered(self.settings.zero_stage, [parameter], modify=True):
                    parameter.data.copy_(weight)
            put_back(self._shards(), self._engine.optimizer, state, WEIGHT)
        torch.set_rng_state(state[RANDOM])

    def _shards(self) -> list[Shard]:
        return find_shards(self._engine.optimizer, self._trained)
