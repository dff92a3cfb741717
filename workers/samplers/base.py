"""The sampler's seam: token ids in, token ids and log-probabilities out.

In: prompts as token ids, a seed and a distribution for each. Out: the sampled ids with the log-probability that each had under
that distribution. Who calls: the design and rollout workers and evaluation. Real ones: samplers.transformers (CPU, the default
on a laptop), samplers.vllm, samplers.openai; tests bring a scripted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from schemas.common import SamplingSettings
from schemas.train import PolicyPublished

StopReason = Literal["stop", "length"]


class SamplingInterrupted(InterruptedError):  # noqa: N818 - a clean stop, no error
    """The process was asked to stop while it sampled; nothing of the batch counts."""


@dataclass(frozen=True)
class SampleRequest:
    """One completion. `seed` in [0, 2**63) alone decides what is drawn, up to rounding, whatever else is in the batch.

    `session` names a conversation: a later request of the same session whose prompt continues what was sampled before may
    reuse what the sampler has computed. It changes the cost, never the result beyond rounding; "" is no session.
    """

    prompt: list[int]
    seed: int
    settings: SamplingSettings  # settings.max_tokens bounds this completion
    stop_ids: frozenset[int]
    session: str = ""


@dataclass(frozen=True)
class SampleResult:
    """What was sampled, the stop token included. `logprobs`: one a token, of the processed distribution (temperature,
    top-k, top-p, renormalised), natural logarithm."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: StopReason


class Sampler(Protocol):
    """A policy that can be sampled. One thread's object."""

    policy_version: int  # -1 before the first load
    policy_digest: str

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and completion that the loaded model can hold."""
        ...

    def load(self, published: PolicyPublished, folder: Path) -> None:
        """Takes over the weights in `folder`, then recomputes the canary. Blocks for the load.

        Raises ModelError for a folder that is no loadable model and CanaryError where its log-probabilities are not the
        trainer's; in both cases the policy that was loaded before stays, and so does `policy_version`.
        """
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """One batch, results in the order of the requests. Blocks until all are done.

        Raises SettingsError for a prompt that the model's context can't hold and SamplingInterrupted on a clean stop.
        """
        ...

    def reset_cache(self) -> None:
        """Forgets all sessions, so that what follows depends on what follows only."""
        ...
