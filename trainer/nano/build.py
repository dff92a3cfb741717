"""`spade nano build`: the committed model folder from nothing but this code, seeded and bound by steps.

In: a folder to write, a seed, a length in minutes, processes. Out: the folder (tokenizer, config, weights), progress lines on
the way. Called by the command line. Blocks for about the minutes that were asked for on two otherwise idle cores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from infra.dialects.nano import NanoDialect
from trainer.nano.families import FAMILIES
from trainer.nano.family import write_source
from trainer.nano.team import Team, train_together
from trainer.nano.tokenizer import save_tokenizer, train_tokenizer
from trainer.nano.writer import draw_hint, draw_memory, draw_words, make_environment, play_oracle

MODEL_FOLDER = Path(__file__).parent / "model"
"""The committed model."""
STEPS_PER_MINUTE = 380
"""Steps that two idle cores do in a minute: turns minutes into steps, so that a build is bound by steps and not by a clock."""
TOKENIZER_PROGRAMS = 4000


def write_texts(seed: int) -> tuple[list[str], list[str]]:
    """Sources, and all other text of the warm start, that the tokenizer is trained on."""
    rng = Random(seed)
    sources, texts = [], []
    families = tuple(FAMILIES.values())
    for index in range(TOKENIZER_PROGRAMS):
        family = families[index % len(families)]
        source = write_source(family, rng, rng.randint(*family.sizes))
        sources.append(source)
        for turn in play_oracle(rng, family, make_environment(source), index, careful=True):
            texts += [turn.observation, turn.working]
        texts.append(draw_hint(rng, family))
        words, skill = draw_words(rng, family)
        memory = [f"{kind} {name} {size}" for kind, name, size in draw_memory(rng, family)]
        texts.append("\n".join([skill, " ".join(words), *memory]))
    return sources, texts


def build(out: Path, seed: int = 0, minutes: float = 24, processes: int = 2, tell: Callable[[str], None] | None = None) -> None:
    """Writes the model folder at `out`. Raises OSError where the folder can't be written, ModelError where a process is gone."""
    say = tell or _silence
    out.mkdir(parents=True, exist_ok=True)
    sources, texts = write_texts(seed)
    save_tokenizer(train_tokenizer(sources, texts), out)
    say(f"tokenizer: trained on {len(sources)} programs")
    steps = max(3, round(minutes * STEPS_PER_MINUTE))
    # a bound method of the caller's console can't travel to another process, and only the first one tells
    train_together(processes, _Training(say), out, seed, steps)
    say(f"written: {out}")


class _Training:
    """The warm start as every process of the team runs it; only the first tells and saves."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def __getstate__(self) -> dict[str, Any]:
        return {"_tell": _silence}

    def __call__(self, team: Team, out: Path, seed: int, steps: int) -> None:
        import torch

        from trainer.nano.model import make_model, save_model
        from trainer.nano.warmstart import plan_stages, warm_start

        torch.set_num_threads(1)
        model = make_model(seed)
        for number, plan in enumerate(plan_stages(steps)):
            self._tell(f"cycle {number + 1}")
            warm_start(model, NanoDialect(out), plan, seed + number, team, self._tell)
            if team.rank == 0:
                save_model(model, out)


def _silence(line: str) -> None:
    """Tells nobody."""
