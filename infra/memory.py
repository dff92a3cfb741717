"""Memory as the design stage asks for it: which earlier environments the designer is shown, by SQL over the stored rows.

In: the store, a run, and the last generation that may be seen. Out: memory lines, a function of the stored rows alone (ties by
id, draws by a hash). Called by streams/recollection in a task of its own. Asynchronous, cancellable; raises StoreError, and
StageTimeoutError where a generation, or a chosen environment's text, does not get into the store.

Candidates of a skill come from infra/ranking.py, each as it was last measured up to that generation: seeds in the frontier by
the lower confidence bound of regret (mean - lcb_errors * SE, and with fewer than two pairs of plays nothing above 0), negatives
newest first, the most repeated by how often later designs repeat them. Then the texts of the few that are chosen
(infra/selection.py) are read. Evicted environments are never shown; mastered ones age out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from infra.clickhouse import Row, Store, StoreAwayError
from infra.clock import Clock, SystemClock
from infra.ranking import rank
from infra.selection import BEST, Candidate, choose
from schemas.design import MemoryLine
from schemas.errors import StageTimeoutError
from schemas.settings import MemorySettings

POLL_S = 0.25
DEEPER = 100  # environments that are ranked in the place of blocked ones, at most

_SIGNATURES = """
SELECT env_id, signature FROM verdicts
WHERE run_id = {run:String} AND generation IN {generations:Array(Int32)} AND env_id IN {envs:Array(String)}
LIMIT 1 BY env_id
"""
_TEXTS = _SIGNATURES.replace("signature", "source, hint")

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


async def wait_for_generation(
    store: Store, run_id: str, generation: int, deadline_s: float, *, clock: Clock | None = None
) -> None:
    """Returns when the generation's closing row and every member's design, verdict, score and reward rows are stored.

    At once for a negative generation. A store that is away is waited for too. Raises StageTimeoutError after `deadline_s`,
    StoreError where the store refuses. Closings are stored in the log's order, so those before it are stored then too.
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


async def rank_candidates(
    store: Store,
    run_id: str,
    upto: int,
    skill: str,
    settings: MemorySettings,
    blocked: frozenset[str] = frozenset(),
    *,
    clock: Clock | None = None,
) -> list[Candidate]:
    """What could be shown to a design of the skill that sees memory up to generation `upto`: by kind, best first, none of the
    `blocked`.

    Raises StageTimeoutError as `read_lines` does.
    """
    if not settings.enabled or upto < 0:
        return []
    deep = settings.model_copy(update={"top": settings.top + min(len(blocked), DEEPER)}) if blocked else settings
    found = [one for one in await rank(store, run_id, upto, skill, deep) if one.env_id not in blocked]
    seeds = [one for one in found if one.kind == BEST][: settings.top + len(settings.negatives)]
    ranked = [*seeds, *[one for one in found if one.kind != BEST]]
    if settings.diversity == "none":
        return ranked
    best = {one.env_id for one in seeds}
    spread = [one for one in ranked if one.env_id in best]
    marks = await _look_up(store, run_id, _SIGNATURES, spread, settings.wait_s, clock)
    return [replace(one, signature=tuple(marks[one.env_id]["signature"])) if one.env_id in best else one for one in ranked]


async def read_lines(
    store: Store, run_id: str, chosen: Sequence[Candidate], skill: str, settings: MemorySettings, *, clock: Clock | None = None
) -> list[MemoryLine]:
    """The chosen environments as memory lines, in their order. Raises StageTimeoutError after `settings.wait_s`."""
    texts = await _look_up(store, run_id, _TEXTS, chosen, settings.wait_s, clock)
    return [
        MemoryLine(
            env_id=one.env_id,
            kind=one.kind,
            skill=skill,
            source=str(texts[one.env_id]["source"]),
            hint=str(texts[one.env_id]["hint"]),
            win_rate=one.win_rate,
            regret=one.regret,
        )
        for one in chosen
    ]


async def select_memory(
    store: Store, run_id: str, upto: int, skill: str, settings: MemorySettings, draw: str
) -> list[MemoryLine]:
    """The lines of one prompt; rank once where many prompts of a skill see the same memory."""
    candidates = await rank_candidates(store, run_id, upto, skill, settings)
    return await read_lines(store, run_id, choose(candidates, settings, draw), skill, settings)


async def _look_up(
    store: Store, run_id: str, sql: str, wanted: Sequence[Candidate], deadline_s: float, clock: Clock | None
) -> dict[str, Row]:
    """The verdicts of all the wanted, by env_id; one that is not stored yet is waited for: verdicts and closings lie in
    partitions of their own."""
    envs = sorted({one.env_id for one in wanted})
    values = {"run": run_id, "generations": sorted({one.generation for one in wanted}), "envs": envs}
    clock = clock or SystemClock()
    end = clock.monotonic() + deadline_s
    while True:
        found = {str(row["env_id"]): row for row in await store.async_query(sql, values)} if wanted else {}
        missing = [env_id for env_id in envs if env_id not in found]
        if not missing:
            return found
        if clock.monotonic() >= end:
            raise StageTimeoutError(
                f"the verdict on environment {missing[0]} of run {run_id} was not in the store within {deadline_s:.0f} s",
                "Look at the memory worker: `spade work memory` stores what the log holds",
            )
        await asyncio.sleep(POLL_S)
