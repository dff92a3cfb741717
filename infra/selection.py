"""Which of the environments that could be shown a design prompt shows: seeds, spread by distance, and negatives.

In: candidates by kind, best first, as infra/memory.py's questions rank them. Out: those chosen, in the prompt's order. Called by
infra/memory.py. Pure: draws are hashes of what is drawn for, ties go to the lower id, so equal memories give equal prompts.

Seeds: the first is drawn among the `memory.top` of highest priority; each next one is, of those left, the one farthest from its
nearest seed so far, by MinHash distance (1 - share of equal positions of the signatures of the normalised sources). Published:
all are drawn. Negatives: drawn by kind; of the repeated ones, the most repeated itself, which then is no seed.

And which environments are played again so that their difficulty stays current: of those that seeds could come from and of the
newest that were too hard (the policy grows into them), those that were measured the longest ago.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.settings import MemorySettings

BEST, EASY, HARD, REPEATED = "best", "easy", "hard", "repeated"
EITHER = "easy-or-hard"


@dataclass(frozen=True)
class Candidate:
    """An environment of one skill that could be shown, with its difficulty as last measured."""

    env_id: str
    kind: str  # BEST | EASY | HARD | REPEATED
    generation: int
    win_rate: float
    regret: float
    measured: int = -1  # the generation whose plays these figures are from
    signature: tuple[int, ...] = ()  # of the candidates for seeds, where the recipe spreads them


def choose(candidates: Sequence[Candidate], settings: MemorySettings, draw: str) -> list[Candidate]:
    """Seeds, then negatives in the order of `settings.negatives`; no environment twice. `draw` names what is drawn for, such as
    "RUN/GENERATION/BLOCK": equal draws are equal."""
    by_kind = {kind: [one for one in candidates if one.kind == kind] for kind in (BEST, EASY, HARD, REPEATED)}
    repeated = by_kind[REPEATED][: settings.negatives.count("repeated")]
    taken = {one.env_id for one in repeated}
    best = [one for one in by_kind[BEST] if one.env_id not in taken][: settings.top]
    seeds = _spread(best, settings, draw)
    pools = {
        EASY: _drawn(by_kind[EASY], f"{draw}/{EASY}"),
        HARD: _drawn(by_kind[HARD], f"{draw}/{HARD}"),
        EITHER: _drawn([*by_kind[EASY], *by_kind[HARD]], f"{draw}/{EITHER}"),
        REPEATED: repeated,
    }
    chosen = list(seeds)
    for kind in settings.negatives:
        shown = {one.env_id for one in chosen} | (taken if kind != REPEATED else set())
        chosen += [one for one in pools[kind] if one.env_id not in shown][:1]
    return chosen


def _spread(best: Sequence[Candidate], settings: MemorySettings, draw: str) -> list[Candidate]:
    left = _drawn(best, f"{draw}/{BEST}")
    if settings.diversity == "none":
        return left[: settings.seeds]
    chosen, left = left[: min(1, settings.seeds)], left[1:]
    while left and len(chosen) < settings.seeds:
        farthest = min(left, key=lambda one: (max(similarity(one, seed) for seed in chosen), one.env_id))
        chosen.append(farthest)
        left.remove(farthest)
    return chosen


def choose_probes(ranked: Iterable[Sequence[Candidate]], settings: MemorySettings, most: int) -> dict[str, int]:
    """At most `most` environments to be played again, by env_id: own generation, the most wanted first. `ranked`: the candidates
    of each of the generation's skills, by kind and best first."""
    pool = {
        one.env_id: one
        for candidates in ranked
        for kind in (BEST, HARD)
        for one in [one for one in candidates if one.kind == kind][: settings.top]
    }
    wanted = sorted(pool.values(), key=lambda one: (one.measured, one.env_id))
    return {one.env_id: one.generation for one in wanted[:most]}


def similarity(one: Candidate, other: Candidate) -> float:
    """Share of equal positions of the two signatures; 0 where either is unknown."""
    if not one.signature or len(one.signature) != len(other.signature):
        return 0.0
    return sum(left == right for left, right in zip(one.signature, other.signature, strict=True)) / len(one.signature)


def _drawn(candidates: Sequence[Candidate], draw: str) -> list[Candidate]:
    """The candidates in the order of their hashes under this draw."""
    return sorted(candidates, key=lambda one: _rank(draw, one.env_id))


def _rank(draw: str, env_id: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{draw}\x1f{env_id}".encode(), digest_size=8).digest(), env_id
