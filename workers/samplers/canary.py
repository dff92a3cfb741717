"""Holds a sampler against the trainer: their log-probabilities of the canary text must agree, or nothing is sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from schemas.common import unpack_floats
from schemas.errors import CanaryError
from schemas.train import PolicyPublished

# Where weights are rounded: SmolLM2's 30 layers show .07 and .42, stale or mixed weights 1 to 3.
BFLOAT16_MEAN, BFLOAT16_MAX = 0.1, 1.0


def check_canary(published: PolicyPublished, seen: Sequence[float], dtype: str) -> None:
    """Compares the sampler's log-probabilities of the canary's tokens[1:] with the published ones. Raises CanaryError."""
    expected = unpack_floats(published.canary.logprobs)
    gaps = [abs(one - other) for one, other in zip(seen, expected, strict=True)]
    worst = math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps)
    mean = sum(gaps) / len(gaps)
    rounded = dtype == "bfloat16" or published.canary.tolerance >= BFLOAT16_MAX  # on either side
    allowed = max(published.canary.tolerance, BFLOAT16_MAX) if rounded else published.canary.tolerance
    if worst > allowed or (rounded and mean > BFLOAT16_MEAN):
        raise CanaryError(
            f"policy {published.version} ({published.digest[:12]}): the sampler's log-probabilities of the canary text "
            f"differ from the trainer's by up to {worst:.3g} (mean {mean:.3g}, allowed {allowed:.3g})",
            "The weights in its folder are stale, mixed or of another model",
        )
