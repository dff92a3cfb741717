"""What each slot of a generation is asked to write: skill, document, group, memory lines.

In: recipe, documents in corpus order, generation, design attempt. Out: DesignSlot values. Called by streams/design.py. Pure:
every draw is a function of the run's seed and the generation.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

import msgspec

from schemas import ids
from schemas.design import DesignSlot, Document, MemoryLine
from schemas.settings import Recipe
from streams.levels import Ladder
from streams.schedule import Schedule

NO_DOCUMENT = Document(document_id="", title="", text="")


def cut_document(document: Document, max_words: int) -> Document:
    """The document, cut after `max_words` words; white space stays as it is in one that is short enough."""
    words = document.text.split()
    return document if len(words) <= max_words else msgspec.structs.replace(document, text=" ".join(words[:max_words]))


def active_skills(recipe: Recipe, generation: int) -> list[str]:
    """The generation's skills: `skills_active` of them, in turn through the recipe's list."""
    count = min(recipe.design.skills_active, len(recipe.skills))
    return [recipe.skills[(generation * count + place) % len(recipe.skills)] for place in range(count)]


def count_blocks(recipe: Recipe) -> int:
    """Blocks of slots that share a document."""
    return recipe.design.environments // recipe.design.per_document


def block_of(recipe: Recipe, slot: int) -> int:
    """The block that a slot belongs to."""
    return slot // recipe.design.per_document


def block_skill(recipe: Recipe, generation: int, block: int) -> str:
    """The skill of a block: the generation's skills in turn."""
    skills = active_skills(recipe, generation)
    return skills[block % len(skills)]


def block_document(recipe: Recipe, documents: Sequence[Document], generation: int, block: int, attempt: int) -> Document:
    """The document of a block at an attempt: a fresh one each, out of those that fit the skill (all where none does).

    Where the recipe names tags, the skill's places in its endless row go to the tags in turn, each with a row of its own.
    """
    skill = block_skill(recipe, generation, block)
    tags: tuple[str, ...] = recipe.corpus.tags or ("",)
    shares = len(active_skills(recipe, generation))
    blocks_a_skill = -(-count_blocks(recipe) // shares)
    wanted = blocks_a_skill * recipe.design.attempts
    begin = generation * wanted
    place, turn = divmod(begin + attempt * blocks_a_skill + block // shares, len(tags))
    of_tag = [document for document in documents if tags[turn] in ("", document.tag)]
    pool = [document for document in of_tag if document.skill in ("", skill)] or of_tag
    if not pool or not (recipe.corpus.enabled or recipe.is_pooled):
        return NO_DOCUMENT
    start, end = (-(-(at - turn) // len(tags)) for at in (begin, begin + wanted))  # the generation's places of this tag
    drawn = draw_pass(len(pool), start, end - start, "/".join([str(recipe.seed), skill, *filter(None, [tags[turn]])]))
    return pool[drawn[place - start]]


def draw_pass(size: int, start: int, count: int, seed: str) -> list[int]:
    """`count` of `size` indices from place `start` of an endless row of shuffled passes over all of them.

    Generations that continue each other's places see every index once a pass; within one draw none repeats while `size` allows.
    """
    drawn: list[int] = []
    seen: set[int] = set()
    place = start
    while len(drawn) < count:
        number, within = divmod(place, size)
        index = _shuffled(size, f"{seed}/{number}")[within]
        place += 1
        if index in seen and len(seen) < size:
            continue
        seen.add(index)
        drawn.append(index)
    return drawn


@functools.lru_cache(maxsize=64)
def _shuffled(size: int, seed: str) -> tuple[int, ...]:
    """One pass. Kept, since every block of every generation asks for it, and a corpus may hold 100,000 documents."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return tuple(order)


def fill_slots(
    run_id: str,
    recipe: Recipe,
    documents: Sequence[Document],
    generation: int,
    attempt: int,
    memory: Mapping[int, list[MemoryLine]],
    ladder: Ladder | None = None,
) -> list[DesignSlot]:
    """The slots that `memory` names (slot -> lines), in slot order, at a design attempt; `ladder`: of a procedural pool."""
    block_documents: dict[int, Document] = {}
    filled = []
    for slot in sorted(memory):
        block = block_of(recipe, slot)
        if block not in block_documents:
            block_documents[block] = (
                block_document(recipe, documents, generation, block, attempt)
                if ladder is None
                else ladder.draw(
                    generation,
                    block,
                    block_skill(recipe, generation, block),
                    Schedule(recipe.schedule).memory_generation(generation),
                    memory[slot],
                )
            )
        env_id = ids.env_id(run_id, generation, slot, attempt)
        filled.append(
            DesignSlot(
                slot=slot,
                design_attempt=attempt,
                env_id=env_id,
                skill=block_skill(recipe, generation, block),
                document=block_documents[block],
                group=f"g{generation}-b{block}-a{attempt}",
                memory=memory[slot],
                sampling_seed=ids.sampling_seed(env_id),
            )
        )
    return filled
