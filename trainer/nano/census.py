"""What the warm start's plays showed first: drawn again as the build drew it, without training anything.

In: a model folder (for its tokenizer), the build's seed and length. Out: digests of canonical observations. Called by `spade nano
census` for the ablations, which leave instances out that were seen. Blocks for a few minutes of one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from infra.dialects.nano import HINT, PLAY, SAY, NanoDialect
from infra.suites.canonical import digest
from trainer.nano.build import STEPS_PER_MINUTE
from trainer.nano.warmstart import draw_batches, plan_stages
from trainer.nano.writer import Sample, Writer

BUILD_SEED, BUILD_MINUTES = 0, 24
"""Of the committed model."""
TELL_STEPS = 500


def take_census(
    model: Path, seed: int = BUILD_SEED, minutes: float = BUILD_MINUTES, tell: Callable[[str], None] = lambda _: None
) -> set[str]:
    """The digests. Raises ModelError where the folder holds no nano tokenizer."""
    dialect, found, steps = NanoDialect(model), set[str](), 0
    for number, plan in enumerate(plan_stages(max(3, round(minutes * STEPS_PER_MINUTE)))):
        for batch in islice(draw_batches(Random(seed + number), Writer(dialect), plan), plan.steps):
            found.update(digest(shown) for shown in openings(dialect, batch))
            steps += 1
            if steps % TELL_STEPS == 0:
                tell(f"census: {steps} steps, {len(found)} instances")
    return found - {""}


def openings(dialect: NanoDialect, batch: list[Sample]) -> Iterator[str]:
    """What each play of a batch showed first; its designs show nothing."""
    for sample in batch:
        ids = sample.token_ids
        if ids[0] == PLAY:
            end = next(place for place, token in enumerate(ids) if token in (HINT, SAY))
            yield dialect.decode(ids[1:end])
