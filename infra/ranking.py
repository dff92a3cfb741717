"""The order of a skill's environments, by SQL: the best, the newest too easy and too hard ones, the most repeated.

In: a store, a run, a skill, and the last generation that may be seen. Out: candidates by kind, best first. Called by
infra/memory.py. Asynchronous, cancellable; raises StoreError.

Of a million environments few are read. First the newest, the end of the table `standings`: they hold the negatives, and tell
which priority as many environments reach as are wanted. Then those that may reach it too, the end of the same rows' order by
regret (migration 013). An environment stands as it was last measured.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from infra.clickhouse import Row, Store
from infra.selection import BEST, EASY, HARD, Candidate
from schemas.settings import MemorySettings

DRAWN = 64  # newest environments of a kind of negative among which one is drawn
NEWEST = 4096  # rows of a skill that are looked at first
ALL = 2**31

# By run and skill: a lower bound of regret that enough of the newest environments reached when last asked. Who guesses by it need
# not wait for them; the answer itself says whether the guess was right. It changes how long a question takes, never its answer.
_reached: dict[tuple[str, str], float] = {}

# Some of these are asked at once, each reads little, and none is asked twice with equal values.
_SHORT = "SETTINGS max_threads = 1, compile_expressions = 0"

# An environment's generation and slot as one number: compared quickly, and by no index.
_PLACE = "(toUInt64(generation) * 4294967296 + slot)"

_VALID = "run_id = {run:String} AND generation <= {upto:Int32} AND valid AND evicted = ''"

# The newest of all skills, with the copies of their rows that are not merged yet. `reach` rows are looked at.
_WINDOW = f"""
SELECT generation, slot, count() AS copies FROM rewards
WHERE {_VALID}
  AND generation >= (SELECT min(generation) FROM
      (SELECT generation FROM rewards WHERE {_VALID} ORDER BY generation DESC LIMIT {{reach:UInt32}}))
GROUP BY generation, slot
ORDER BY generation DESC, slot DESC
LIMIT {{window:UInt32}}
{_SHORT}
"""  # noqa: S608  (our own text; values are bound)

_SKILL = "run_id = {run:String} AND skill = {skill:String} AND measured <= {upto:Int32}"
_SEEN = f"{_SKILL} AND generation >= {{since:Int32}}"
_SEEN_IN_WINDOW = f"""{_SEEN} AND {_PLACE} IN
    (SELECT {_PLACE} FROM rewards WHERE {_VALID} AND generation >= {{since:Int32}} AND {_PLACE} >= {{oldest:UInt64}})"""  # noqa: S608  (our own text; values are bound)

_BOUND = """toFloat64(multiIf({by_reward:UInt8}, reward,
            pairs >= 2 OR {errors:Float64} = 0, regret - {errors:Float64} * regret_se,
            least(0, regret)))"""

_KINDS = {
    BEST: "evicted = '' AND win_rate >= {low:Float64} AND win_rate <= {high:Float64}",
    EASY: "evicted = '' AND win_rate > {over:Float64} AND generation > {aged:Int32}",
    HARD: "evicted = '' AND win_rate < {under:Float64}",
}


def _recent(seen: str) -> str:
    """What the newest rows hold of each kind, and how many rows there were and down to which generation. Small blocks: the engine
    stops between blocks."""
    kinds = ", ".join(f"if({condition}, '{kind}', '')" for kind, condition in _KINDS.items())
    return f"""
SELECT
    kind, env_id, generation, slot, win_rate, regret, measured, if(kind = 'best', bound, toFloat64(generation)) AS priority,
    looked, lowest
FROM
(
    SELECT
        env_id, generation, slot, win_rate, regret, measured, evicted, {_BOUND} AS bound,
        count() OVER () AS looked, min(generation) OVER () AS lowest
    FROM
    (
        SELECT env_id, generation, slot, win_rate, regret, measured, evicted, pairs, regret_se, reward FROM standings
        WHERE {seen}
        ORDER BY generation DESC, slot DESC, measured DESC
        LIMIT {{newest:UInt32}}
        SETTINGS max_block_size = 8192
    )
    ORDER BY generation DESC, slot DESC, measured DESC
    LIMIT 1 BY generation, slot
)
ARRAY JOIN [{kinds}] AS kind
WHERE kind != ''
ORDER BY kind, priority DESC, env_id
LIMIT {{most:UInt32}} BY kind
{_SHORT}
"""  # noqa: S608  (our own text; values are bound)


# Measurements that a later one took the place of: none of an environment that was measured once.
_OVERTAKEN = f"""
WITH overtaken AS
(
    SELECT
        {_PLACE} AS place,
        arrayJoin(arrayPopBack(arraySort(arrayPushBack(groupUniqArray(measured), generation)))) AS earlier
    FROM standings
    WHERE {_SKILL} AND measured - generation > 0
    GROUP BY generation, slot
)"""  # noqa: S608  (our own text; values are bound)


def _beyond(kind: str) -> str:
    """Environments of a kind among all that may be seen."""
    priority, order, least = "toFloat64(generation)", "generation DESC, slot DESC", ""
    if kind == BEST:
        priority, order, least = _BOUND, "priority DESC, env_id", "AND regret >= {least:Float64}"
    return f"""
SELECT '{kind}' AS kind, env_id, generation, slot, win_rate, regret, measured, {priority} AS priority
FROM standings
WHERE {_SEEN} AND {_KINDS[kind]} AND ({_PLACE}, measured) NOT IN (SELECT place, earlier FROM overtaken) {least}
ORDER BY {order}
LIMIT {{{kind}:UInt32}}
"""  # noqa: S608  (our own text; values are bound)


_REPETITIONS = "FROM generations FINAL WHERE run_id = {run:String} AND generation <= {upto:Int32} AND generation > {aged:Int32}"


def _repeated(seen: str) -> str:
    return f"""
WITH (SELECT sumMap(repeated) {_REPETITIONS}) AS times
SELECT 'repeated' AS kind, env_id, generation, slot, win_rate, regret, measured, toFloat64(times[env_id]) AS priority
FROM
(
    SELECT env_id, generation, slot, win_rate, regret, measured, evicted FROM standings
    WHERE {seen} AND env_id IN (SELECT arrayJoin(mapKeys(times)))
    ORDER BY generation DESC, slot DESC, measured DESC
    LIMIT 1 BY generation, slot
)
WHERE evicted = ''
ORDER BY priority DESC, env_id
LIMIT {{repeated:UInt32}}
{_SHORT}
"""  # noqa: S608  (our own text; values are bound)


@dataclass(frozen=True)
class _Newest:
    """What the newest rows hold, best first: of some kinds all that is wanted."""

    rows: dict[str, list[Row]]
    certain: frozenset[str]


async def rank(store: Store, run_id: str, upto: int, skill: str, settings: MemorySettings) -> list[Candidate]:
    """Candidates of the skill as generations up to `upto` have measured them, by kind and best first, without signatures."""
    values: Row = {
        "run": run_id, "upto": upto, "skill": skill, "window": settings.window, "oldest": 0,
        "since": max(0, upto - settings.generations + 1) if settings.generations else 0,
        "low": settings.frontier[0], "high": settings.frontier[1], "under": settings.negative[0], "over": settings.negative[1],
        "by_reward": int(settings.priority == "reward"), "errors": settings.lcb_errors,
        "aged": upto - settings.age_out if settings.age_out else -1,
    }  # fmt: skip
    if settings.window:
        generation, slot = await _oldest(store, values)
        values |= {"since": max(values["since"], generation), "oldest": generation * 2**32 + slot}
    drawn = max(DRAWN, settings.window)
    most = {BEST: settings.top + len(settings.negatives), EASY: drawn, HARD: drawn}
    again = settings.negatives.count("repeated")
    repeating = _repeated(_SEEN_IN_WINDOW if settings.window else _SEEN)
    ranked, repeated = await asyncio.gather(
        _ranked(store, values, most), _distinct(store, repeating, values, {"repeated": again} if again else {})
    )
    return _candidates([*ranked, *repeated])


async def _oldest(store: Store, values: Row) -> tuple[int, int]:
    """Generation and slot of the window's last environment; (0, 0) where the window holds all."""
    reach = 3 * values["window"]
    while True:
        rows = await store.async_query(_WINDOW, {**values, "reach": reach})
        if len(rows) == values["window"]:
            return rows[-1]["generation"], rows[-1]["slot"]
        if sum(row["copies"] for row in rows) < reach:
            return 0, 0
        reach *= 4


async def _ranked(store: Store, values: Row, most: dict[str, int]) -> list[Row]:
    """The first `most` of each kind but the repeated."""
    place = (values["run"], values["skill"])
    guess = _reached.get(place, math.inf) if not values["window"] and not values["by_reward"] else math.inf
    wanted = {BEST: most[BEST]} if guess < math.inf else {}
    found, best = await asyncio.gather(_newest(store, values, most), _beyond_newest(store, {**values, "least": guess}, wanted))
    missing = {kind: number for kind, number in most.items() if kind not in found.certain}
    if len(best) == most[BEST] and best[-1]["priority"] >= guess:
        missing.pop(BEST, None)  # whoever has less regret than the guess has a lower bound than all of these
    else:
        best = found.rows[BEST]
    least = -math.inf
    if BEST not in found.certain and len(found.rows[BEST]) == most[BEST] and not values["by_reward"]:
        least = found.rows[BEST][-1]["priority"] - 1e-9  # a lower one is as right, whatever becomes of its last digit
        _reached[place] = least
    more = await _beyond_newest(store, {**values, "least": least}, missing)
    rows = {**found.rows, BEST: best} | {kind: [row for row in more if row["kind"] == kind] for kind in missing}
    return [row for kind in most for row in rows[kind]]


async def _beyond_newest(store: Store, values: Row, most: dict[str, int]) -> list[Row]:
    """The first `most` of the kinds among all that may be seen."""
    return await _distinct(store, f"{_OVERTAKEN}{'UNION ALL'.join(_beyond(kind) for kind in most)}{_SHORT}", values, most)


async def _newest(store: Store, values: Row, most: dict[str, int]) -> _Newest:
    """The newest rows' answer. A window is looked at whole."""
    sql, newest = (_recent(_SEEN_IN_WINDOW), ALL) if values["window"] else (_recent(_SEEN), NEWEST)
    rows = await store.async_query(sql, {**values, "newest": newest, "most": max(most.values())})
    by_kind = {kind: [row for row in rows if row["kind"] == kind][:number] for kind, number in most.items()}
    if newest == ALL or (rows and rows[0]["looked"] < newest):
        return _Newest(by_kind, frozenset(most))
    lowest = rows[0]["lowest"] if rows else values["upto"] + 1  # of this generation some rows may be missing
    certain = {
        kind
        for kind in (EASY, HARD)
        if (len(by_kind[kind]) == most[kind] and by_kind[kind][-1]["generation"] > lowest)
        or (kind == EASY and lowest <= values["aged"])
    }
    return _Newest(by_kind, frozenset(certain))


async def _distinct(store: Store, sql: str, values: Row, most: dict[str, int]) -> list[Row]:
    """The first `most` environments of each kind, best first. The store may hold copies of a row that it has not merged yet: rows
    are asked for beyond the number, and once more where copies filled them."""
    copies = 3
    while True:
        limits = {kind: copies * number for kind, number in most.items()}
        rows = await store.async_query(sql, {**values, **limits}) if most else []
        rows.sort(key=lambda row: (-row["priority"], row["env_id"]))
        found: list[Row] = []
        for kind, number in most.items():
            asked = [row for row in rows if row["kind"] == kind]
            own = {row["env_id"]: row for row in _certain(asked, kind, limits[kind])}
            if len(asked) == limits[kind] and len(own) < number:
                break
            found += list(own.values())[:number]
        else:
            return found
        copies *= 2


def _certain(rows: list[Row], kind: str, limit: int) -> list[Row]:
    """Those of a kind's rows that no row beyond the limit comes before. Negatives were cut by slot and are ordered by id: of the
    last generation there may be more."""
    if len(rows) < limit or kind not in (EASY, HARD):
        return rows
    return [row for row in rows if row["generation"] > rows[-1]["generation"]]


def _candidates(rows: list[Row]) -> list[Candidate]:
    names = ("env_id", "kind", "generation", "win_rate", "regret", "measured")
    return [Candidate(**{name: row[name] for name in names}) for row in rows]
