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
from schemas.design import CollapseReaction, DesignSlot, Document, MemoryLine
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


def block_document(
    recipe: Recipe, documents: Sequence[Document], generation: int, block: int, attempt: int, *, lent: bool = False
) -> Document:
    """The document of a block at an attempt: a fresh one each, out of those that fit the skill (all where none does).

    Where the recipe names tags, the skill's places in its endless row go to the tags in turn, each with a row of its own. `lent`:
    also where the corpus is off.
    """
    if not (recipe.corpus.enabled or recipe.is_pooled or lent):
        return NO_DOCUMENT
    shares = len(active_skills(recipe, generation))
    blocks_a_skill = -(-count_blocks(recipe) // shares)
    skill = block_skill(recipe, generation, block)
    return _draw_document(recipe, documents, generation, skill, attempt * blocks_a_skill + block // shares, blocks_a_skill)


def slot_document(recipe: Recipe, documents: Sequence[Document], generation: int, slot: int, attempt: int) -> Document:
    """A document for the slot alone, likewise; from rows of their own, so that what blocks get does not hang on it."""
    shares = len(active_skills(recipe, generation))
    slots_a_skill = -(-count_blocks(recipe) // shares) * recipe.design.per_document
    block, within = divmod(slot, recipe.design.per_document)
    place = attempt * slots_a_skill + block // shares * recipe.design.per_document + within
    return _draw_document(recipe, documents, generation, block_skill(recipe, generation, block), place, slots_a_skill, "own")


def _draw_document(
    recipe: Recipe, documents: Sequence[Document], generation: int, skill: str, at: int, an_attempt: int, row: str = ""
) -> Document:
    """The document at place `at` of those that the generation's designs of a skill get, `an_attempt` of them at each attempt."""
    tags: tuple[str, ...] = recipe.corpus.tags or ("",)
    wanted = an_attempt * recipe.design.attempts
    begin = generation * wanted
    place, turn = divmod(begin + at, len(tags))
    of_tag = [document for document in documents if tags[turn] in ("", document.tag)]
    pool = [document for document in of_tag if document.skill in ("", skill)] or of_tag
    if not pool:
        return NO_DOCUMENT
    start, end = (-(-(at - turn) // len(tags)) for at in (begin, begin + wanted))  # the generation's places of this tag
    drawn = draw_pass(len(pool), start, end - start, "/".join([str(recipe.seed), skill, *filter(None, [tags[turn], row])]))
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
    reaction: CollapseReaction | None = None,
) -> list[DesignSlot]:
    """The slots that `memory` names (slot -> lines), in slot order, at a design attempt; `ladder`: of a procedural pool;
    `reaction`: of the collapse control, which may give each slot a document."""
    lent = reaction is not None and recipe.collapse.borrow_documents
    apart = (
        reaction is not None
        and recipe.collapse.own_documents
        and recipe.design.per_document > 1
        and (recipe.corpus.enabled or lent)
    )
    drawn: dict[int, Document] = {}  # by slot where each has its own, else by block
    filled = []
    for slot in sorted(memory):
        block = block_of(recipe, slot)
        key = slot if apart else block
        if key not in drawn and apart:
            drawn[key] = slot_document(recipe, documents, generation, slot, attempt)
        elif key not in drawn and ladder is None:
            drawn[key] = block_document(recipe, documents, generation, block, attempt, lent=lent)
        elif key not in drawn and ladder is not None:
            newest = Schedule(recipe.schedule).memory_generation(generation)
            drawn[key] = ladder.draw(generation, block, block_skill(recipe, generation, block), newest, memory[slot])
        env_id = ids.env_id(run_id, generation, slot, attempt)
        filled.append(
            DesignSlot(
                slot=slot,
                design_attempt=attempt,
                env_id=env_id,
                skill=block_skill(recipe, generation, block),
                document=drawn[key],
                group=f"g{generation}-b{block}-a{attempt}",
                memory=memory[slot],
                sampling_seed=ids.sampling_seed(env_id),
            )
        )
    return filled
