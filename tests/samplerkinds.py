"""The real samplers by their word, for the samplers' contract: each over a policy's folder, as workers make them.

A process holds one vLLM engine a model family, since one more costs seconds: who asks again gets it with the policy loaded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from schemas.train import PolicyPublished
from workers.samplers.base import Sampler
from workers.samplers.transformers import TransformersSampler

HEAD_SIZE = 16  # of the contract's small models; 32, the least that vLLM takes, where it is among the samplers (conftest.py)
RUNNING: Final[dict[str, Sampler]] = {}


class Switch:
    """What a sampler asks whether it is interrupted: `looks` more times no, then yes; None: never."""

    def __init__(self) -> None:
        self.looks: int | None = None

    def __call__(self) -> bool:
        if self.looks is None:
            return False
        self.looks -= 1
        return self.looks < 0


SWITCH: Final = Switch()


def load_sampler(kind: str, published: PolicyPublished, folder: Path, family: str) -> Sampler:
    """A sampler that holds the policy and remembers nothing."""
    sampler = RUNNING.get(f"{kind}/{family}") or MAKERS[kind]()
    if kind != "transformers":
        RUNNING[f"{kind}/{family}"] = sampler
    sampler.load(published, folder)
    sampler.reset_cache()
    return sampler


def _make_vllm() -> Sampler:
    from workers.samplers.vllm import VllmSampler

    return VllmSampler(kv_bytes=64 * 1024**2, interrupted=SWITCH)


MAKERS: Final[dict[str, Callable[[], Sampler]]] = {
    "transformers": lambda: TransformersSampler(interrupted=SWITCH),
    "vllm": _make_vllm,
}
