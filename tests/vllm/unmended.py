"""vLLM's worker without our remedy for tied embeddings, so that a test sees the canary catch what then happens.

A program: vLLM mixes an extension into its worker class once a process. `python -m tests.vllm.unmended FOLDER` makes two policies
there, loads the first and then the second in place, and prints what came of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workers.samplers.vllm_reload import read_weights


class UnmendedReload:
    """See workers.samplers.vllm_reload.PolicyReload: the same weights, and nothing packed anew."""

    reload_weights: Any

    def take_policy(self, folder: str) -> None:
        self.reload_weights(weights_iterator=read_weights(Path(folder)))


def main() -> int:
    """Prints "taken", or the canary's error."""
    from schemas.errors import CanaryError
    from tests.vllm.smallpolicy import make_policy
    from workers.samplers.vllm import VllmSampler

    first, second = (make_policy(Path(sys.argv[1]) / f"v{version}" / "policy", version) for version in (1, 2))
    sampler = VllmSampler(kv_bytes=64 * 1024**2, extension="tests.vllm.unmended.UnmendedReload")
    sampler.load(first.published, first.folder)
    try:
        sampler.load(second.published, second.folder)
    except CanaryError as problem:
        sys.stdout.write(f"\nCanaryError: {problem}\n")
    else:
        sys.stdout.write("\ntaken\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
