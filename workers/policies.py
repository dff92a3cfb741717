"""The policy that a unit names, in the sampler: waits for its publication, fetches it, loads it.

In: a version. Out: a sampler that holds the version's last publication. Called by workers.design and workers.rollout, in the
thread that samples. Blocks; raises StageTimeoutError when the version does not come, PolicyError and CanaryError when it can't
be used (then nothing is sampled), SamplingInterrupted on a clean stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from infra.kafka import BrokerWatch, ControlReader, LogEntry
from infra.policystore import PolicyStore
from infra.runs import Run, find_folder
from infra.telemetry import get_logger, observe, set_gauge
from schemas.errors import PolicyError, StageTimeoutError
from schemas.process import BrokerSettings
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import PolicyPublished
from workers.samplers.base import Sampler, SamplingInterrupted

if TYPE_CHECKING:
    from workers.samplers.transformers import TransformersSampler
    from workers.samplers.vllm import VllmSampler

WAIT_S = 900.0
POLL_S = 0.2
log = get_logger("workers.policies")


def make_sampler(recipe: Recipe, interrupted: Callable[[], bool]) -> Sampler:
    """The recipe's sampler, without a policy yet. Imports torch and blocks for seconds; raises ModelError, SettingsError."""
    sampler = bare_sampler(recipe, interrupted)
    # The first load imports the model's code for seconds, in which a busy machine sends no heartbeat: before the group is joined.
    sampler.load_unpublished(find_folder(recipe.model.path), -1, "")
    return sampler


def bare_sampler(recipe: Recipe, interrupted: Callable[[], bool]) -> TransformersSampler | VllmSampler:
    """The recipe's sampler before any load. vLLM samples in the trainer's dtype, and holds no longer context than plays have."""
    processes = recipe.processes
    if processes.sampler == "vllm":
        from workers.samplers.vllm import VllmSampler

        context = recipe.rollout.context_tokens if recipe.model.dialect != "nano" else 0  # the nano model's is short anyway
        kv_bytes = int(processes.kv_gib * 2**30)
        return VllmSampler(recipe.train.dtype, context, kv_bytes, processes.threads, interrupted)
    import torch

    from workers.samplers.transformers import TransformersSampler

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return TransformersSampler(device=device, threads=processes.threads, interrupted=interrupted)


class PolicyFeed:
    """Keeps one sampler at the versions that are asked for."""

    def __init__(
        self, broker: BrokerSettings, run: Run, sampler: Sampler, interrupted: Callable[[], bool], wait_s: float = WAIT_S
    ) -> None:
        self._broker, self._run_id, self._sampler, self._interrupted, self._wait_s = (
            broker,
            run.run_id,
            sampler,
            interrupted,
            wait_s,
        )
        self._store = PolicyStore(run.policy_place)
        self._reader = ControlReader(broker, [Topic.POLICY_PUBLISHED], run.run_id)
        self._known: dict[int, PolicyPublished] = {}

    def hold(self, version: int, *, newest: bool = False) -> None:
        """Makes the sampler hold the version, or where `newest` the newest that is published, at least `version`."""
        self._note(self._reader.catch_up())
        end, reachable = time.monotonic() + self._wait_s, BrokerWatch(self._broker)
        while not (max(self._known, default=-1) >= version if newest else version in self._known):
            if self._interrupted():
                raise SamplingInterrupted
            reachable.check()
            if time.monotonic() >= end:
                raise StageTimeoutError(
                    f"policy version {version} of run {self._run_id} was not published within {self._wait_s:.0f} s",
                    f"Check that the trainer runs (newest version seen: {max(self._known, default='none')})",
                )
            self._note(self._reader.poll(POLL_S))
        self._load(max(self._known) if newest else version, newest=newest)

    def _load(self, version: int, *, newest: bool) -> None:
        published = self._known[version]
        if (self._sampler.policy_version, self._sampler.policy_digest) == (version, published.digest):
            return
        started = time.monotonic()
        try:
            self._sampler.load(published, self._store.fetch(published))
        except PolicyError:
            self._note(self._reader.catch_up())
            if not newest or max(self._known) == version:
                raise
            self._load(max(self._known), newest=True)  # the trainer went on meanwhile, and the old ones are removed
            return
        observe("spade_policy_load_seconds", time.monotonic() - started)
        set_gauge("spade_policy_version", version)
        log.info(
            "policy loaded", policy_version=version, digest=published.digest[:12], seconds=round(time.monotonic() - started, 3)
        )

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()

    def _note(self, entries: Sequence[LogEntry]) -> None:
        for _, _, _, record in entries:
            if isinstance(record, PolicyPublished):
                self._known[record.version] = record
