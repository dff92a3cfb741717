"""What each slot of a generation is asked to write: skill, document, group, memory lines.

In: recipe, documents in corpus order, generation, design attempt. Out: DesignSlot values. Called by streams/design.py. Pure:
every draw is a function of the run's seed and the generation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from schemas import ids
from schemas.design import DesignSlot, Document, MemoryLine
from schemas.settings import Recipe

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
    """The document of a block at an attempt: a fresh one each, out of those that fit the skill (all where none does)."""
    skill = block_skill(recipe, generation, block)
    pool = [document for document in documents if document.skill in ("", skill)] or list(documents)
    if not recipe.corpus.enabled or not pool:
        return NO_DOCUMENT
    shares = len(active_skills(recipe, generation))
    blocks_a_skill = -(-count_blocks(recipe) // shares)
    wanted = blocks_a_skill * recipe.design.attempts
    drawn = draw_pass(len(pool), generation * wanted, wanted, f"{recipe.seed}/{skill}")
    return pool[drawn[attempt * blocks_a_skill + block // shares]]


def draw_pass(size: int, start: int, count: int, seed: str) -> list[int]:
    """`count` of `size` indices from place `start` of an endless row of shuffled passes over all of them.

    Generations that continue each other's places see every index once a pass; within one draw none repeats while `size` allows.
    """
    drawn: list[int] = []
    seen: set[int] = set()
    place, shuffled, order = start, -1, list(range(size))
    while len(drawn) < count:
        number, within = divmod(place, size)
        if number != shuffled:
            shuffled, order = number, list(range(size))
            random.Random(f"{seed}/{number}").shuffle(order)
        place += 1
        if order[within] in seen and len(seen) < size:
            continue
        seen.add(order[within])
        drawn.append(order[within])
    return drawn


def fill_slots(
    run_id: str,
    recipe: Recipe,
    documents: Sequence[Document],
    generation: int,
    attempt: int,
    memory: Mapping[int, list[MemoryLine]],
) -> list[DesignSlot]:
    """The slots that `memory` names (slot -> lines), in slot order, at a design attempt."""
    block_documents: dict[int, Document] = {}
    filled = []
    for slot in sorted(memory):
        block = block_of(recipe, slot)
        if block not in block_documents:
            block_documents[block] = block_document(recipe, documents, generation, block, attempt)
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
