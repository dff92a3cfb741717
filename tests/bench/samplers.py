"""vLLM beside the transformers sampler on one CPU thread: `.venv-vllm/bin/python -m tests.bench.samplers`, some minutes long.

Both sample the same requests of the nano model, in turn, after a round that does not count. Prints tokens a second of each and
the ratio, for equal lengths, lengths as episodes have them, prompts that several plays share, and conversations of turns.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from schemas.common import SamplingSettings
from workers.samplers.base import SampleRequest
from workers.samplers.transformers import TransformersSampler
from workers.samplers.vllm import VllmSampler

MODEL = Path(__file__).parents[2] / "trainer/nano/model"
ROUNDS = 5
VOCABULARY = 768
Samplers = TransformersSampler | VllmSampler


def prompt(length: int, seed: int) -> list[int]:
    """Tokens that mean nothing."""
    draw = random.Random(seed)
    return [draw.randrange(10, VOCABULARY) for _ in range(length)]


def ask(tokens: Sequence[int], seed: int, length: int, session: str = "") -> SampleRequest:
    """A completion of exactly `length` tokens."""
    return SampleRequest(list(tokens), seed, SamplingSettings(max_tokens=length), frozenset(), session)


def one_batch(requests: Sequence[SampleRequest]) -> Callable[[Samplers], int]:
    """A case: all requests at once; the tokens sampled."""
    return lambda sampler: sum(len(result.tokens) for result in sampler.sample(requests))


def conversations(count: int, turns: int, shown: int, said: int) -> Callable[[Samplers], int]:
    """A case: `count` episodes of `turns` turns, each of `shown` tokens that are read and `said` that are sampled."""

    def play(sampler: Samplers) -> int:
        texts, total = [prompt(shown, number) for number in range(count)], 0
        for turn in range(turns):
            asked = [ask(text, 100 * turn + number, said, str(number)) for number, text in enumerate(texts)]
            for number, result in enumerate(sampler.sample(asked)):
                texts[number] += [*result.tokens, *prompt(shown, 1000 * turn + number)]
                total += len(result.tokens)
        return total

    return play


def tell(what: str) -> None:
    """Progress, to standard error."""
    sys.stderr.write(what + "\n")


def cases() -> dict[str, Callable[[Samplers], int]]:
    """By name. Lengths of episodes: the mean is a quarter of the most."""
    draw = random.Random(1)
    skewed = [min(256, max(4, int(draw.expovariate(1 / 64)))) for _ in range(64)]
    shared = [prompt(512, number // 8) for number in range(64)]
    return {
        "64 of equal length": one_batch([ask(prompt(64, number), number, 128) for number in range(64)]),
        "64 of skewed lengths": one_batch([ask(prompt(64, number), number, length) for number, length in enumerate(skewed)]),
        "8 prompts of 512 tokens, 8 plays each": one_batch([ask(text, number, 64) for number, text in enumerate(shared)]),
        "32 episodes of 6 turns": conversations(32, 6, 48, 32),
    }


def measure(samplers: dict[str, Samplers]) -> dict[str, dict[str, float]]:
    """Median tokens a second of each sampler in each case, rounds interleaved."""
    found: dict[str, dict[str, float]] = {}
    for name, case in cases().items():
        tell(name)
        speeds: dict[str, list[float]] = {kind: [] for kind in samplers}
        for _ in range(ROUNDS + 1):
            for kind, sampler in samplers.items():
                sampler.reset_cache()
                began = time.perf_counter()
                tokens = case(sampler)
                speeds[kind].append(tokens / (time.perf_counter() - began))
        found[name] = {kind: median(values[1:]) for kind, values in speeds.items()}
    return found


def main() -> int:
    """Measures and prints; 0 whatever the figures are."""
    began = os.getloadavg()[0]
    samplers: dict[str, Samplers] = {"transformers": TransformersSampler(), "vllm": VllmSampler(kv_bytes=512 * 1024**2)}
    for sampler in samplers.values():
        sampler.load_unpublished(MODEL, 0, "")
    found = measure(samplers)
    sys.stdout.write(f"nano model, float32, one thread; load {began:.1f} before, {os.getloadavg()[0]:.1f} after\n\n")
    sys.stdout.write("| case | transformers, tokens/s | vLLM, tokens/s | vLLM : transformers |\n|---|---|---|---|\n")
    for name, speeds in found.items():
        ours, theirs = speeds["transformers"], speeds["vllm"]
        sys.stdout.write(f"| {name} | {ours:,.0f} | {theirs:,.0f} | {theirs / ours:.2f} |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
