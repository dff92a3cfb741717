"""A sampler without weights: its tokens follow from the prompt and the seed by a hash. Passes the samplers' contract."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import CanaryError, SettingsError
from schemas.train import PolicyPublished
from workers.samplers.base import SampleRequest, SampleResult

STALE = "stale"  # a place whose weights are never the published ones


class HashSampler:
    """See workers.samplers.base.Sampler. Draws uniformly from `vocabulary` tokens; notes the batches it was given."""

    def __init__(self, vocabulary: int = 96, context_tokens: int = 128) -> None:
        self.policy_version = -1
        self.policy_digest = ""
        self.context_tokens = context_tokens
        self.vocabulary = vocabulary
        self.batches: list[list[SampleRequest]] = []

    def load(self, published: PolicyPublished, folder: Path) -> None:
        if published.place == STALE:
            raise CanaryError(f"policy {published.version} is stale")
        self.policy_version, self.policy_digest = published.version, published.digest

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        self.batches.append(list(requests))
        return [self.complete(request) for request in requests]

    def reset_cache(self) -> None:
        """Holds nothing."""

    def complete(self, request: SampleRequest) -> SampleResult:
        room = self.context_tokens - len(request.prompt)
        if room < 1 or not request.prompt:
            raise SettingsError(f"a prompt of {len(request.prompt)} tokens does not fit the context of {self.context_tokens}")
        tokens: list[int] = []
        for place in range(min(request.settings.max_tokens, room)):
            drawn = hashlib.sha256(f"{self.policy_version}/{request.prompt}/{request.seed}/{place}".encode()).digest()
            tokens.append(int.from_bytes(drawn[:4], "big") % self.vocabulary)
            if tokens[-1] in request.stop_ids:
                return SampleResult(tokens, [-math.log(self.vocabulary)] * len(tokens), "stop")
        return SampleResult(tokens, [-math.log(self.vocabulary)] * len(tokens), "length")
