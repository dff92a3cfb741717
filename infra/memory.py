"""Memory as the design stage asks for it: which earlier environments the designer is shown.

In: the store, a run, and the last generation that may be seen. Out: memory lines, a function of the stored rows alone (ties by
id, draws by a hash). Called by streams/app in a task of its own. Asynchronous, cancellable; raises StoreError, and
StageTimeoutError where a generation does not get into the store.

Paper: two seeds of the same skill with win rate in [.15, .85], drawn from the ten of highest regret, and one negative with a
win rate above .9 or below .1, among the last 200 environments. Nano: lines best (by reward), easy and hard of the last
generations, two of each. Evicted environments are never shown.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from infra.clickhouse import Store, StoreAwayError
from infra.clock import Clock, SystemClock
from schemas.design import MemoryLine
from schemas.errors import StageTimeoutError
from schemas.settings import MemorySettings

NANO_LINES = 2  # of each kind
POLL_S = 0.25

_CANDIDATES = """
SELECT env_id, generation, slot, skill, source, hint, win_rate, regret, reward
FROM environments
WHERE run_id = {run:String} AND generation <= {upto:Int32} AND generation >= {since:Int32} AND evicted = ''
ORDER BY generation DESC, slot DESC, env_id
LIMIT {limit:UInt32}
"""

# Members of a closed generation that lack a row somewhere; -1 while the closing itself is not stored.
_INCOMPLETE = """
WITH
    (SELECT count() FROM generations FINAL WHERE run_id = {run:String} AND generation = {generation:Int32}) AS closings,
    (SELECT groupArrayArray(members) FROM slots_closed FINAL
     WHERE run_id = {run:String} AND generation = {generation:Int32}) AS members,
    (SELECT groupUniqArray(env_id) FROM designs WHERE run_id = {run:String} AND generation = {generation:Int32}) AS designed,
    (SELECT groupUniqArray(env_id) FROM verdicts WHERE run_id = {run:String} AND generation = {generation:Int32}) AS judged,
    (SELECT groupUniqArray(env_id) FROM scores WHERE run_id = {run:String} AND generation = {generation:Int32}) AS scored,
    (SELECT groupUniqArray(env_id) FROM rewards WHERE run_id = {run:String} AND generation = {generation:Int32}) AS rewarded,
    (SELECT count() FROM slots_closed WHERE run_id = {run:String} AND generation = {generation:Int32}) AS slots
SELECT if(
    closings = 0 OR slots = 0,
    -1,
    toInt64(arrayCount(
        one -> NOT (has(designed, one) AND has(judged, one) AND has(scored, one) AND has(rewarded, one)),
        members))
) AS missing
"""


@dataclass(frozen=True)
class Candidate:
    """A closed environment that could be shown."""

    env_id: str
    generation: int
    slot: int
    skill: str
    source: str
    hint: str
    win_rate: float
    regret: float
    reward: float


async def wait_for_generation(
    store: Store, run_id: str, generation: int, deadline_s: float, *, clock: Clock | None = None
) -> None:
    """Returns when the generation's closing row and every member's design, verdict, score and reward rows are stored.

    At once for a negative generation. A store that is away is waited for too. Raises StageTimeoutError after `deadline_s`,
    StoreError where the store refuses.
    """
    if generation < 0:
        return
    clock = clock or SystemClock()
    end = clock.monotonic() + deadline_s
    while True:
        try:
            missing = int((await store.async_query(_INCOMPLETE, {"run": run_id, "generation": generation}))[0]["missing"])
            what = "its closing row is missing" if missing < 0 else f"rows of {missing} of its members are missing"
        except StoreAwayError as problem:
            missing, what = -1, problem.cause
        if missing == 0:
            return
        if clock.monotonic() >= end:
            raise StageTimeoutError(
                f"generation {generation} of run {run_id} was not in the store within {deadline_s:.0f} s: {what}",
                "Look at the memory worker: `spade work memory` stores what the log holds",
            )
        await asyncio.sleep(POLL_S)


async def load_candidates(store: Store, run_id: str, upto: int, settings: MemorySettings) -> list[Candidate]:
    """What may be shown to generations that see memory up to generation `upto`, newest first; [] where memory is off."""
    if not settings.enabled or upto < 0:
        return []
    by_generation = settings.generations > 0
    since = upto - settings.generations + 1 if by_generation else 0
    limit = 1_000_000 if by_generation else settings.window
    rows = await store.async_query(_CANDIDATES, {"run": run_id, "upto": upto, "since": max(since, 0), "limit": limit})
    return [Candidate(**row) for row in rows]


def choose_lines(candidates: Sequence[Candidate], skill: str, settings: MemorySettings, draw: str) -> list[MemoryLine]:
    """The lines for one design prompt. `draw` names what is drawn for, such as "RUN/GENERATION/BLOCK": equal draws are equal."""
    same = [one for one in candidates if one.skill == skill]
    low, high = settings.frontier
    hard_below, easy_above = settings.negative
    frontier = [one for one in same if low <= one.win_rate <= high]
    easy = [one for one in same if one.win_rate > easy_above]
    hard = [one for one in same if one.win_rate < hard_below]
    if settings.generations > 0:
        best = sorted(frontier, key=lambda one: (-one.reward, one.env_id))[: settings.top]
        return [
            *_drawn(best, "best", NANO_LINES, draw),
            *_drawn(easy, "easy", NANO_LINES, draw),
            *_drawn(hard, "hard", NANO_LINES, draw),
        ]
    top = sorted(frontier, key=lambda one: (-one.regret, one.env_id))[: settings.top]
    seeds = _drawn(top, "best", settings.seeds, draw)
    negative = sorted([*easy, *hard], key=lambda one: _rank(draw, one.env_id))[:1]
    return [*seeds, *[_line(one, "easy" if one.win_rate > easy_above else "hard") for one in negative]]


async def select_memory(
    store: Store, run_id: str, upto: int, skill: str, settings: MemorySettings, draw: str
) -> list[MemoryLine]:
    """`load_candidates` and `choose_lines` for one prompt; load once where many prompts see the same memory."""
    return choose_lines(await load_candidates(store, run_id, upto, settings), skill, settings, draw)


def _drawn(candidates: Sequence[Candidate], kind: str, count: int, draw: str) -> list[MemoryLine]:
    chosen = sorted(candidates, key=lambda one: _rank(f"{draw}/{kind}", one.env_id))[:count]
    return [_line(one, kind) for one in chosen]


def _rank(draw: str, env_id: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{draw}\x1f{env_id}".encode(), digest_size=8).digest(), env_id


def _line(one: Candidate, kind: str) -> MemoryLine:
    return MemoryLine(
        env_id=one.env_id,
        kind=kind,
        skill=one.skill,
        source=one.source,
        hint=one.hint,
        win_rate=one.win_rate,
        regret=one.regret,
    )
