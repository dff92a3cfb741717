"""`spade nano build`: the committed model folder from nothing but this code, seeded and bound by steps.

In: a folder to write, a seed, a length in minutes, threads. Out: the folder (tokenizer, config, weights), progress lines on the
way. Called by the command line. Blocks for about the minutes that were asked for on two otherwise idle cores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from infra.dialects.nano import NanoDialect
from trainer.nano.families import FAMILIES
from trainer.nano.family import write_source
from trainer.nano.tokenizer import save_tokenizer, train_tokenizer
from trainer.nano.writer import draw_hint, draw_memory, draw_words, make_environment, play_oracle

MODEL_FOLDER = Path(__file__).parent / "model"
"""The committed model."""
STEPS_PER_MINUTE = 340
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


def build(out: Path, seed: int = 0, minutes: float = 24, threads: int = 2, tell: Callable[[str], None] | None = None) -> None:
    """Writes the model folder at `out`. Raises OSError where the folder can't be written."""
    import os

    # Two busy-waiting threads on two shared cores lose most of their time to each other; read when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from trainer.nano.model import make_model, save_model
    from trainer.nano.warmstart import plan_stages, warm_start

    say = tell or (lambda line: None)
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    sources, texts = write_texts(seed)
    save_tokenizer(train_tokenizer(sources, texts), out)
    say(f"tokenizer: trained on {len(sources)} programs")
    model = make_model(seed)
    for number, plan in enumerate(plan_stages(max(3, round(minutes * STEPS_PER_MINUTE)))):
        say(f"cycle {number + 1}")
        warm_start(model, NanoDialect(out), plan, seed + number, say)
        save_model(model, out)
    say(f"written: {out}")
