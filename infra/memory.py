"""Memory as the design stage asks for it: which earlier environments the designer is shown, by SQL over the stored rows.

In: the store, a run, and the last generation that may be seen. Out: memory lines, a function of the stored rows alone (ties by
id, draws by a hash). Called by streams/recollection in a task of its own. Asynchronous, cancellable; raises StoreError, and
StageTimeoutError where a generation, or a chosen environment's text, does not get into the store.

One question a skill ranks all of the skill's environments by the table `standings`, each as it was last measured up to that
generation: seeds in the frontier by the lower confidence bound of regret (mean - lcb_errors * SE, and with fewer than two pairs
of plays nothing above 0), negatives newest first, the most repeated by how often later designs repeat them. A second one reads
the texts of the few that are chosen (infra/selection.py). Evicted environments are never shown; mastered ones age out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from infra.clickhouse import Row, Store, StoreAwayError
from infra.clock import Clock, SystemClock
from infra.selection import BEST, Candidate, choose
from schemas.design import MemoryLine
from schemas.errors import StageTimeoutError
from schemas.settings import MemorySettings

DRAWN = 64  # newest environments of a kind of negative among which one is drawn
POLL_S = 0.25

# Environments that were measured again, and when last: few. An environment is its generation and slot, two numbers, so that a
# million are looked through without a look at their ids.
_LATER = """
    SELECT generation, slot, max(measured) AS last FROM standings
    WHERE run_id = {run:String} AND skill = {skill:String} AND measured <= {upto:Int32} AND measured > generation
    GROUP BY generation, slot
"""

_NEWEST = """
    SELECT generation, slot
    FROM
    (
        SELECT generation, slot FROM rewards
        WHERE {window:UInt32} > 0 AND run_id = {run:String} AND generation <= {upto:Int32} AND valid AND evicted = ''
        ORDER BY generation DESC, slot DESC
        LIMIT {reach:UInt32}
    )
    GROUP BY generation, slot
    ORDER BY generation DESC, slot DESC
    LIMIT {window:UInt32}
"""

_SEEN = """run_id = {run:String} AND skill = {skill:String} AND measured <= {upto:Int32} AND generation >= {since:Int32}
      AND ({window:UInt32} = 0 OR (generation, slot) IN (SELECT generation, slot FROM newest))"""

_BOUND = """multiIf({by_reward:UInt8}, reward,
            pairs >= 2 OR {errors:Float64} = 0, regret - {errors:Float64} * regret_se,
            least(0, regret))"""

# All of the skill are looked at once, each as it was last measured.
_BEST = f"""
SELECT 'best' AS kind, env_id, generation, slot, win_rate, regret, measured, toFloat64({_BOUND}) AS priority
FROM standings
WHERE {_SEEN} AND evicted = '' AND win_rate >= {{low:Float64}} AND win_rate <= {{high:Float64}}
  AND ((generation, slot) NOT IN (SELECT generation, slot FROM later)
       OR (generation, slot, measured) IN (SELECT generation, slot, last FROM later))
ORDER BY priority DESC, env_id
LIMIT {{best:UInt32}}
"""  # noqa: S608  (our own text; values are bound)


def _from_the_newest(condition: str) -> str:
    """Environments as they were last measured, in no order: who limits them says which."""
    return f"""
    SELECT env_id, generation, slot, win_rate, regret, measured
    FROM
    (
        SELECT env_id, generation, slot, win_rate, regret, measured, evicted FROM standings
        WHERE {_SEEN} AND {condition}
        ORDER BY generation DESC, slot DESC, measured DESC
        LIMIT 1 BY generation, slot
    )
    WHERE evicted = ''"""  # noqa: S608  (our own text; values are bound)


def _newest_of(kind: str, place: str, condition: str) -> str:
    return f"""
SELECT '{kind}' AS kind, env_id, generation, slot, win_rate, regret, measured, toFloat64(generation) AS priority
FROM ({_from_the_newest(place)} AND {condition} ORDER BY generation DESC, slot DESC LIMIT {{{kind}:UInt32}})
"""  # noqa: S608  (our own text; values are bound)


_RANKED = f"WITH newest AS ({_NEWEST}), later AS ({_LATER})" + "UNION ALL".join(
    [
        _BEST,
        _newest_of("easy", "generation > {aged:Int32}", "win_rate > {over:Float64}"),
        _newest_of("hard", "true", "win_rate < {under:Float64}"),
    ]
)

_REPEATED = f"""
WITH
    newest AS ({_NEWEST}),
    copies AS
    (
        SELECT pair.1 AS env_id, sum(pair.2) AS times
        FROM
        (
            SELECT arrayJoin(arrayZip(mapKeys(repeated), mapValues(repeated))) AS pair
            FROM generations FINAL
            WHERE run_id = {{run:String}} AND generation <= {{upto:Int32}} AND generation > {{aged:Int32}}
        )
        GROUP BY env_id
    )
SELECT 'repeated' AS kind, current.env_id AS env_id, generation, slot, win_rate, regret, measured, toFloat64(times) AS priority
FROM ({_from_the_newest("env_id IN (SELECT env_id FROM copies)")}) AS current
INNER JOIN copies ON current.env_id = copies.env_id
ORDER BY priority DESC, env_id
LIMIT {{repeated:UInt32}}
"""  # noqa: S608  (our own text; values are bound)

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
    store: Store, run_id: str, upto: int, skill: str, settings: MemorySettings, *, clock: Clock | None = None
) -> list[Candidate]:
    """What could be shown to a design of the skill that sees memory up to generation `upto`: by kind, best first.

    Raises StageTimeoutError as `read_lines` does.
    """
    if not settings.enabled or upto < 0:
        return []
    values = {
        "run": run_id, "upto": upto, "skill": skill, "window": settings.window,
        "since": max(0, upto - settings.generations + 1) if settings.generations else 0,
        "low": settings.frontier[0], "high": settings.frontier[1], "under": settings.negative[0], "over": settings.negative[1],
        "by_reward": int(settings.priority == "reward"), "errors": settings.lcb_errors,
        "aged": upto - settings.age_out if settings.age_out else -1,
    }  # fmt: skip
    drawn = max(DRAWN, settings.window)
    most = {"best": settings.top + len(settings.negatives), "easy": drawn, "hard": drawn}
    again = settings.negatives.count("repeated")
    candidates, repeated = await asyncio.gather(
        _distinct(store, _RANKED, values, most), _distinct(store, _REPEATED, values, {"repeated": again} if again else {})
    )
    ranked = [*candidates, *repeated]
    if settings.diversity == "none":
        return ranked
    best = {one.env_id for one in [one for one in ranked if one.kind == BEST][: settings.top + len(settings.negatives)]}
    spread = [one for one in ranked if one.env_id in best]
    found = await _look_up(store, run_id, _SIGNATURES, spread, settings.wait_s, clock)
    return [replace(one, signature=tuple(found[one.env_id]["signature"])) if one.env_id in best else one for one in ranked]


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


async def _distinct(store: Store, sql: str, values: Row, most: dict[str, int]) -> list[Candidate]:
    """The first `most` environments of each kind, best first. The store may hold copies of a row that it has not merged yet: rows
    are asked for beyond the number, and once more where copies filled them."""
    copies = 3
    while most:
        limits = {kind: copies * number for kind, number in most.items()}
        rows = await store.async_query(sql, {**values, **limits, "reach": copies * int(values["window"])})
        rows.sort(key=lambda row: (row["kind"], -row["priority"], row["env_id"]))
        own = {(row["kind"], row["env_id"]): row for row in rows}
        asked = Counter(row["kind"] for row in rows)
        given = Counter(kind for kind, _ in own)
        if all(asked[kind] < limits[kind] or given[kind] >= most[kind] for kind in most):
            names = ("env_id", "kind", "generation", "win_rate", "regret", "measured")
            chosen = [Candidate(**{name: row[name] for name in names}) for row in own.values()]
            return [one for kind in most for one in [one for one in chosen if one.kind == kind][: most[kind]]]
        copies *= 2
    return []


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
