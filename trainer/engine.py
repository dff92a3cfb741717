"""The DeepSpeed engine of the trainer: one call is one step over a whole batch, its state goes in and out as plain tensors.

In: a policy's folder and TrainSettings; trajectories. Out: a StepOutcome; weights and optimizer state. Called by trainer/loop.
The gradient is that of the batch's loss however it is cut: each micro batch's share is weighted by the batch's own counts and
accumulated, DeepSpeed steps once (managed_gradient_accumulation off). A non-finite loss or gradient is not applied. Nothing here
waits for anything but the computation. One process: data-parallel trainers need the batch split by rank, which is not written.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.common import SamplingSettings
from schemas.errors import SettingsError
from schemas.settings import TrainSettings
from schemas.train import AGENT, DESIGNER, RoleStats
from trainer.loss import LossRule, role_weights, token_loss
from trainer.model import PLAIN, PolicyModule, action_logprobs, load_language_model, text_logprobs
from trainer.packing import MicroBatch, Trajectory, pack
from trainer.tally import RoleTally, open_tallies

MASTER, WEIGHT, RANDOM = "master", "weight", "random"


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
            self._reference = PolicyModule(load_language_model(reference or folder, settings.dtype))
        self.language_model = load_language_model(folder, settings.dtype)
        self._names = [name for name, _ in self.language_model.named_parameters()]
        self._parameters = [parameter for _, parameter in self.language_model.named_parameters()]
        self._engine = start_deepspeed(PolicyModule(self.language_model), settings)
        self.language_model.eval()  # no dropout: the sampler had none

    def train(
        self, trajectories: Sequence[Trajectory], table: Sequence[SamplingSettings], between: Callable[[], None] = lambda: None
    ) -> StepOutcome:
        """One step over the batch; `between` is called before each forward pass and may raise to give the step up.

        After such a raise the engine must not be used again. An empty batch changes nothing and has loss 0.
        """
        outcome = StepOutcome()
        tallies = open_tallies(trajectories)
        parts = min(self.settings.minibatches, max(len(trajectories), 1))
        before = self.state() if parts > 1 else {}
        table = table if self.settings.logits == "sampler" else [PLAIN] * len(table)
        micros = [self._pack(trajectories, range(part, len(trajectories), parts)) for part in range(parts)]
        old = self._start_logprobs(micros, table, outcome, between) if parts > 1 else {}
        for group in micros:
            self._accumulate(group, table, old, outcome, tallies, between, 1.0 / parts)
            if not math.isfinite(outcome.loss):
                outcome.skipped = "non-finite loss"
            with _timed(outcome.seconds, "step"):
                if any(micro.gradient for micro in group) and not self._apply(outcome):
                    outcome.skipped = outcome.skipped or "non-finite gradient"
            if outcome.skipped:
                if before:
                    self.load_state(before)
                break
        outcome.roles = {role: tally.stats() for role, tally in tallies.items()}
        return outcome

    def _pack(self, trajectories: Sequence[Trajectory], chosen: Sequence[int]) -> list[MicroBatch]:
        weights = [0.0] * len(trajectories)
        lengths, roles = [len(trajectories[i].actions) for i in chosen], [trajectories[i].role for i in chosen]
        for position, weight in zip(chosen, role_weights(lengths, roles, self.settings.aggregate, self._scale), strict=True):
            weights[position] = weight
        return pack(trajectories, weights, chosen, self.settings.micro_batch_tokens, all_gradients=self.settings.kl_beta > 0)

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
                found[id(micro)] = action_logprobs(self._engine(micro.ids, micro.row, micro.column), micro, table)
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
        kl_weight = self.settings.kl_beta / max(sum(len(micro.target) for micro in micros), 1)
        for micro in micros:
            between()
            with _timed(outcome.seconds, "forward"), torch.set_grad_enabled(micro.gradient):
                now = action_logprobs(self._engine(micro.ids, micro.row, micro.column), micro, table)
                sample_of = micro.row
                terms = token_loss(
                    now,
                    old.get(id(micro), now.detach()),
                    micro.sampled,
                    micro.advantage,
                    sample_of,
                    self.rule,
                    self._reference_logprobs(micro, table),
                )
                weighted = terms.loss * micro.weight
                loss = weighted.sum() + kl_weight * terms.kl.sum()
            value = float(loss.detach())
            outcome.loss += value * share
            if micro.gradient:
                with _timed(outcome.seconds, "backward"):
                    # A non-finite loss must reach the gradients, so that the optimizer refuses the step and clears them.
                    self._engine.backward(loss if math.isfinite(value) else loss * math.nan)
            self._count(micro, weighted.detach() * share, terms, now.detach(), tallies)

    def _count(
        self, micro: MicroBatch, weighted: torch.Tensor, terms: Any, now: torch.Tensor, tallies: dict[str, RoleTally]
    ) -> None:
        for role in set(micro.roles):
            mine = torch.tensor([found == role for found in micro.roles])[micro.row]
            scale = self._scale.get(role, 1.0)
            tallies[role].add(mine, weighted / scale if scale else weighted, terms, now)

    def _reference_logprobs(self, micro: MicroBatch, table: Sequence[SamplingSettings]) -> torch.Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return action_logprobs(self._reference(micro.ids, micro.row, micro.column), micro, table)

    def _apply(self, outcome: StepOutcome) -> bool:
        """Clips, steps and clears the gradients; False where a gradient was not finite, and nothing changed."""
        if self.settings.zero_stage == 0 and self.settings.dtype == "float32":
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
            outcome.grad_norm = float(norm)
            if not math.isfinite(outcome.grad_norm):
                self._engine.zero_grad()
                return False
            self._engine.step()
            return True
        with _known_warnings():
            self._engine.step()
        outcome.grad_norm = float(self._engine.get_global_grad_norm() or 0.0)
        return bool(self._engine.was_step_applied())

    def canary(self, tokens: Sequence[int]) -> list[float]:
        """The model's own log-probabilities of tokens[1:], plain; from a full forward, not from the training path."""
        with self._gathered():
            return text_logprobs(self.language_model, tokens)

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the weights by their transformers names, tied ones once, in the training dtype."""
        with self._gathered():
            found = {name: parameter.detach().clone() for name, parameter in zip(self._names, self._parameters, strict=True)}
        kept = self.language_model.state_dict().keys()
        buffers = {name: value.detach().clone() for name, value in self.language_model.named_buffers() if name in kept}
        return {**found, **buffers}

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on: weights, float32 masters, optimizer state, random state."""
        found = {f"{WEIGHT}/{name}": tensor for name, tensor in self.weights().items()}
        for index, master in enumerate(self._masters()):
            found[f"{MASTER}/{index}"] = master.detach().clone()
            for key, value in self._base_optimizer().state.get(master, {}).items():
                found[f"{key}/{index}"] = torch.as_tensor(value).detach().clone()
        found[RANDOM] = torch.get_rng_state()
        return found

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Puts back what `state` gave, from an engine of the same settings and model; bit for bit."""
        base = self._base_optimizer()
        with torch.no_grad():
            with self._gathered(modify=True):
                for name, parameter in zip(self._names, self._parameters, strict=True):
                    parameter.data.copy_(state[f"{WEIGHT}/{name}"])
            for index, master in enumerate(self._masters()):
                master.data.copy_(state[f"{MASTER}/{index}"])
                kept = {key.split("/")[0]: value for key, value in state.items() if key.endswith(f"/{index}")}
                kept.pop(MASTER)
                known = base.state.get(master, {})
                if not kept:
                    base.state.pop(master, None)
                for key, value in kept.items():
                    if key in known:
                        known[key].copy_(value)
                    else:
                        base.state[master][key] = value.clone()
        torch.set_rng_state(state[RANDOM])

    def _base_optimizer(self) -> torch.optim.Optimizer:
        wrapped = self._engine.optimizer
        found: torch.optim.Optimizer = wrapped if isinstance(wrapped, torch.optim.Optimizer) else wrapped.optimizer
        return found

    def _masters(self) -> list[torch.Tensor]:
        """The tensors that the optimizer steps: the parameters, or ZeRO's flat float32 copies of them."""
        wrapped = self._engine.optimizer
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
            if hasattr(wrapped, name):
                return list(getattr(wrapped, name))
        return list(self._parameters)

    @contextlib.contextmanager
    def _gathered(self, modify: bool = False) -> Iterator[None]:
        """Under ZeRO 3 the parameters are whole only inside this."""
        if self.settings.zero_stage < 3:
            yield
            return
        import deepspeed

        with _known_warnings(), deepspeed.zero.GatheredParameters(self._parameters, modifier_rank=0 if modify else None):
            yield


def start_deepspeed(module: PolicyModule, settings: TrainSettings) -> Any:
    """DeepSpeed's engine around the module, over torch's AdamW (DeepSpeed's own costs 1.6 times as much on a CPU)."""
    _join_process_group()
    # Batches are built in main memory; without this DeepSpeed would put the model on a GPU that it finds.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    # The shared-memory operator serves several processes on one host. Where there is one, it is declared absent, which spares
    # the install a compiler and a minute, and the start a build lock that a killed process would leave behind.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False, "deepspeed_not_implemented": False}
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )
    bfloat16 = settings.dtype == "bfloat16"
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.max_grad_norm,
        "zero_optimization": {"stage": max(settings.zero_stage, 1 if bfloat16 else 0)},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bfloat16, "check_grad_overflow": True},
        "steps_per_print": 2**31,
    }
    with _known_warnings():
        engine, _, _, _ = deepspeed.initialize(model=module, optimizer=optimizer, config=config, dist_init_required=False)
    return engine


def _join_process_group() -> None:
    """A gloo group of this one process over a store in memory: no port, nothing that another process could meet."""
    from torch import distributed

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError("WORLD_SIZE is above 1, the trainer runs in one process", "Unset it; train.threads gives it cores")
    # DeepSpeed asks for them even where the group stands.
    asked = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in asked.items():
        os.environ.setdefault(name, value)
    if not distributed.is_initialized():
        store = distributed.HashStore()  # type: ignore[attr-defined]  # public, but missing in torch's __all__
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


@contextlib.contextmanager
def _known_warnings() -> Iterator[None]:
    """DeepSpeed calls collectives by names that this torch renames later."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
