"""Makes a pool once: environments by the base model as designer, or by the warm start's own author, admitted by the real gate.

In: a recipe, who makes it, how many. Out: a folder as `pool = "fixed"` or "procedural" reads it: pool.jsonl. Called by `spade
pool make`. Blocks for some tenths of a second an environment, most of it the gate's. Equal orders give equal pools: what is
sampled and drawn follows from the seed, and a smaller pool is the beginning of a larger one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from infra.ablation.arms import Maker
from infra.corpus.pool import PoolLine
from infra.durable import write_whole
from schemas import ids
from schemas.design import DesignRequested, MemoryLine
from schemas.errors import SandboxError, SettingsError
from schemas.settings import Recipe

if TYPE_CHECKING:
    from workers.gate import Verdict

POOL_FILE = "pool.jsonl"
TRIES = 3
TELL_S = 20.0
EMPTY_ROUNDS = 20  # rounds in a row without a new admitted environment before the maker gives up
PROGRAMS_A_LEVEL = 8


@dataclass(frozen=True)
class PoolOrder:
    """What is to be made. `count` 0: all that the maker has (levels)."""

    maker: Maker
    count: int
    seed: int
    folder: Path


Judge = Callable[[PoolLine], "Verdict"]
Lines = Iterator[PoolLine | None]  # None: a design that can't be read


def make_pool(recipe: Recipe, order: PoolOrder, say: Callable[[str], None]) -> int:
    """Writes the pool, whole or not at all; the number of its environments.

    Raises SettingsError where the folder holds one already or too little is admitted, ModelError, SandboxError, CorpusError.
    """
    if (order.folder / POOL_FILE).exists():
        raise SettingsError(f"{order.folder} holds a pool already", "Name a new folder with --to")
    if order.folder.exists() and not (order.folder.is_dir() and not any(order.folder.iterdir())):
        raise SettingsError(
            f"--to {order.folder} is no empty folder", "Name a new one: all that lies in a pool's folder belongs to it"
        )
    order.folder.mkdir(parents=True, exist_ok=True)
    candidates = MAKERS[order.maker](recipe, order.seed)
    with _gate(recipe) as judge:
        kept = admit(candidates, judge, order, EMPTY_ROUNDS * recipe.design.environments, say)
    if len(kept) < order.count:
        raise SettingsError(f"the maker wrote {len(kept)} different environments, {order.count} were asked for", "Ask for fewer")
    write_pool(order.folder, kept)
    return len(kept)


def admit(
    candidates: Iterable[PoolLine | None], judge: Judge, order: PoolOrder, patience: int, say: Callable[[str], None]
) -> list[PoolLine]:
    """The admitted candidates, each source once, up to the order's count; None is one that can't be read. Raises SettingsError
    after `patience` refusals at the beginning, or in a row."""
    kept: list[PoolLine] = []
    seen: set[str] = set()
    judged, refused, told = 0, 0, time.monotonic()
    for line in candidates:
        if order.count and len(kept) == order.count:
            break
        if line is None or line.source in seen:
            refused += 1
        else:
            seen.add(line.source)
            verdict = judge(line)
            judged += 1
            refused = 0 if verdict.admitted else refused + 1
            if verdict.admitted:
                kept.append(msgspec.structs.replace(line, id=f"{order.maker}-{len(kept):05d}"))
        if refused >= patience:
            raise SettingsError(
                f"{refused} designs in a row can't be read, were refused by the gate or written before, after {len(kept)} "
                "admitted ones",
                "Ask for fewer, or name another model",
            )
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            say(f"{len(kept)} of {order.count or 'all'} environments, {judged} judged")
    return kept


@contextmanager
def _gate(recipe: Recipe) -> Iterator[Judge]:
    """The gate as the validate worker has it. A judgement that the machine interrupts is made again, up to TRIES times."""
    from infra.actions import action_form
    from workers.gate import ALLOWED_IMPORTS, JAILS_OF_A_JUDGEMENT, GateInterrupted, judge
    from workers.sandbox import open_sandbox

    box, form = recipe.sandbox, action_form(recipe.model.dialect)
    allowed = ALLOWED_IMPORTS.union(box.packages)
    with closing(open_sandbox(box.mode, required_level=box.level, ready=JAILS_OF_A_JUDGEMENT, packages=box.packages)) as sandbox:

        def decide(line: PoolLine) -> Verdict:
            for _ in range(TRIES):
                try:
                    return judge(
                        sandbox, line.source, line.hint, max_turns=recipe.rollout.max_turns, allowed_imports=allowed, form=form
                    )
                except GateInterrupted as interrupted:
                    cause = str(interrupted)
            raise SandboxError(f"no verdict in {TRIES} tries: {cause}", "Try again when the machine is less busy")

        yield decide


def write_pool(folder: Path, lines: list[PoolLine]) -> None:
    """Writes the lines, whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / POOL_FILE, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def by_designer(recipe: Recipe, seed: int) -> Lines:
    """What the recipe's model writes for the recipe's documents, without memory: as the first generation's designs, for ever."""
    return _designed(recipe, f"pool-{seed}", seed, lambda _generation, _slot: [])


def by_wide_designer(recipe: Recipe, seed: int) -> Lines:
    """The same with memory lines of families and sizes as the warm start drew them: the widest that the base model writes."""
    return _designed(
        recipe, f"pool-wide-{seed}", seed, lambda generation, slot: draw_lines(Random(f"{seed}/{generation}/{slot}"))
    )


def draw_lines(rng: Random) -> list[MemoryLine]:
    """Memory lines of environments that nobody played: any family, any size, in an order that makes sense."""
    from trainer.nano.families import FAMILIES
    from trainer.nano.family import write_source
    from trainer.nano.writer import draw_memory

    drawn = draw_memory(rng, rng.choice(tuple(FAMILIES.values())))
    return [
        MemoryLine(
            env_id=f"made-up-{place}",
            kind=kind,
            skill=FAMILIES[name].skill,
            source=write_source(FAMILIES[name], rng, size),
            hint="",
            win_rate=0.0,
            regret=0.0,
        )
        for place, (kind, name, size) in enumerate(drawn)
    ]


def _designed(recipe: Recipe, run_id: str, seed: int, remembered: Callable[[int, int], list[MemoryLine]]) -> Lines:
    """Designs of version 0 for one generation after the other; `remembered`: the memory lines of a generation's slot."""
    from infra.corpus.pool import recipe_documents
    from infra.dialects import recipe_dialect
    from infra.policystore import files_digest, policy_files
    from infra.runs import find_folder
    from streams.slots import fill_slots
    from workers.design import write_designs
    from workers.policies import bare_sampler

    folder = find_folder(recipe.model.path)
    dialect, sampler = recipe_dialect(recipe, folder), bare_sampler(recipe, lambda: False)
    sampler.load_unpublished(folder, 0, files_digest(folder, policy_files(folder)))
    documents = recipe_documents(recipe, find_folder(recipe.corpus.path))
    seeded = recipe.model_copy(update={"seed": seed})
    for generation in itertools.count():
        memory = {slot: remembered(generation, slot) for slot in range(recipe.design.environments)}
        unit_id = ids.design_unit_id(run_id, generation, 0, 0)
        request = DesignRequested(
            run_id=run_id,
            event_id=unit_id,
            unit_id=unit_id,
            generation=generation,
            design_attempt=0,
            policy_version=0,
            settings=recipe.design.sampling.on_wire(),
            slots=fill_slots(run_id, seeded, documents, generation, 0, memory),
        )
        for proposed in write_designs(request, sampler, dialect):
            line = PoolLine(source=proposed.source, hint=proposed.hint, skill=proposed.skill)
            yield None if proposed.parse_error else line


def by_author(recipe: Recipe, seed: int) -> Iterator[PoolLine]:
    """What the warm start's own author writes: any family of the recipe's skills, sizes after memory lines, hints that help."""
    from trainer.nano.families import families_of
    from trainer.nano.family import write_source
    from trainer.nano.writer import choose_size, draw_memory

    rng = Random(f"pool/author/{seed}")
    skills = [skill for skill in recipe.skills if families_of(skill)]
    if not skills:
        raise SettingsError(f"the nano author has no family for {', '.join(recipe.skills)}", "Name other skills in the recipe")
    while True:
        for skill in skills:
            family = rng.choice(families_of(skill))
            size = choose_size(rng, family, draw_memory(rng, family))
            yield PoolLine(source=write_source(family, rng, size), hint=rng.choice(family.hints), skill=skill)


def by_levels(recipe: Recipe, seed: int) -> Iterator[PoolLine]:
    """The same author at each of a family's sizes: some programs a level, the first level the easiest."""
    from trainer.nano.families import FAMILIES
    from trainer.nano.family import write_source

    for family in FAMILIES.values():
        if family.skill not in recipe.skills:
            continue
        low, high = family.sizes
        for level, size in enumerate(range(low, high + 1, family.step)):
            rng = Random(f"pool/levels/{seed}/{family.name}/{level}")
            for _ in range(PROGRAMS_A_LEVEL):
                yield PoolLine(
                    source=write_source(family, rng, size),
                    hint=rng.choice(family.hints),
                    skill=family.skill,
                    family=family.name,
                    level=level,
                )


MAKERS: Mapping[str, Callable[[Recipe, int], Lines]] = {
    "designer": by_designer,
    "wide": by_wide_designer,
    "author": by_author,
    "levels": by_levels,
}
