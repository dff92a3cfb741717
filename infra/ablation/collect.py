"""What a finished run's store says of it, as figures for its arm's result, and what its plays showed first.

In: a store and a run id. Out: plain values. Called by `spade ablate`. Raises StoreError, SettingsError. FINAL folds redelivered
rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from infra.ablation.results import GenerationResult
from infra.clickhouse import Row, Store
from infra.dialects.nano import describe_source
from infra.suites import SuiteItem
from infra.suites.canonical import digest
from schemas.errors import SettingsError

GENERATIONS = """
SELECT g.generation AS generation, g.proposed AS proposed, g.valid AS valid, g.win_rate AS win_rate,
       g.hint_win_rate AS hint_win_rate, g.regret AS regret, g.regret_se AS regret_se, g.vendi AS vendi, g.repeats AS repeats,
       f.share AS frontier, f.helped AS helped
FROM generations AS g FINAL
LEFT JOIN
(
    SELECT generation, avg(win_rate >= 0.4 AND win_rate <= 0.6) AS share, avg(regret > 0.6 * regret_se) AS helped
    FROM rewards FINAL WHERE run_id = {run:String} AND valid GROUP BY generation
) AS f ON f.generation = g.generation
WHERE g.run_id = {run:String} ORDER BY g.generation
"""

TRAINED = """
SELECT sumIf(agent_samples, skipped = '') AS episodes, sumIf(designer_samples, skipped = '') AS designs,
       sumIf(agent_tokens + designer_tokens, skipped = '') AS tokens, countIf(NOT drain) AS steps
FROM steps FINAL WHERE run_id = {run:String}
"""

SAMPLED = """
SELECT (SELECT sum(sampled_tokens) FROM episodes FINAL WHERE run_id = {run:String})
     + (SELECT sum(completion_tokens) FROM designs FINAL WHERE run_id = {run:String}) AS tokens
"""

FINISHED = """
SELECT countIf(event = 'finished') AS finished FROM runs FINAL WHERE run_id = {run:String}
"""

TIMES = """
SELECT toUnixTimestamp64Milli(created_at) AS at FROM
(
    SELECT created_at FROM runs FINAL WHERE run_id = {run:String}
    UNION ALL
    SELECT created_at FROM steps FINAL WHERE run_id = {run:String}
)
ORDER BY at
"""

PAUSE_GAPS, PAUSE_MS = 10, 120_000
"""A gap between two steps that is longer than both, so many times the median gap and so much time, is a pause before a resume."""

SOURCES = """
SELECT generation, source FROM verdicts FINAL WHERE run_id = {run:String} AND valid ORDER BY generation, slot
"""

REACTED = """
SELECT DISTINCT generation FROM prompts FINAL WHERE run_id = {run:String} AND reaction != ''
"""

OPENINGS = """
SELECT DISTINCT observations[1] AS opening FROM episodes FINAL WHERE run_id = {run:String} AND notEmpty(observations)
"""


DESIGNS = """
SELECT env_id, skill, source, hint, witness_min_return FROM verdicts FINAL
WHERE run_id = {run:String} AND valid AND has({generations:Array(Int32)}, generation) ORDER BY generation, slot
"""

FIGURES = ("win_rate", "hint_win_rate", "regret", "regret_se", "vendi", "repeats", "frontier", "helped")


@dataclass(frozen=True)
class RunFigures:
    """A run in numbers."""

    steps: int
    trained_episodes: int
    trained_designs: int
    trained_tokens: int
    sampled_tokens: int
    minutes: float
    """Of work: what passed between a stop and its resume is left out."""
    generations: list[GenerationResult]


def collect(store: Store, run_id: str) -> RunFigures:
    """The figures of a run that has finished. Raises SettingsError where the store does not hold its end."""
    run = {"run": run_id}
    if not int(store.query(FINISHED, run)[0]["finished"]):
        raise SettingsError(
            f"the store does not hold the end of run {run_id}", "Bring it there with `spade memory rebuild`, or run the arm again"
        )
    trained = store.query(TRAINED, run)[0]
    labels: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for row in store.query(SOURCES, run):
        labels[int(row["generation"])].append(describe_source(str(row["source"])))
    reacted = {int(row["generation"]) for row in store.query(REACTED, run)}
    return RunFigures(
        steps=int(trained["steps"]),
        trained_episodes=int(trained["episodes"]),
        trained_designs=int(trained["designs"]),
        trained_tokens=int(trained["tokens"]),
        sampled_tokens=int(store.query(SAMPLED, run)[0]["tokens"]),
        minutes=round(busy_ms([int(row["at"]) for row in store.query(TIMES, run)]) / 60000, 2),
        generations=[
            _generation(row, labels[int(row["generation"])], reacted=int(row["generation"]) in reacted)
            for row in store.query(GENERATIONS, run)
        ],
    )


def busy_ms(times: Sequence[int]) -> int:
    """What of the time between the first and the last of these moments (in milliseconds, ascending) was no pause."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    limit = max(PAUSE_MS, PAUSE_GAPS * median(gaps)) if gaps else 0
    return sum(gap for gap in gaps if gap <= limit)


def _generation(row: Row, labels: Sequence[tuple[str, int]], *, reacted: bool) -> GenerationResult:
    named = [label for label in labels if label[0] != "other"]
    sizes: dict[str, list[int]] = defaultdict(list)
    for family, size in named:
        sizes[family].append(size)
    return GenerationResult(
        generation=int(row["generation"]),
        proposed=int(row["proposed"]),
        valid=int(row["valid"]),
        kinds=round(len(set(named)) / max(1, len(named)), 5),
        sizes={family: round(sum(own) / len(own), 2) for family, own in sorted(sizes.items())},
        reacted=reacted,
        **{name: round(float(row[name]), 5) for name in FIGURES},
    )


def read_designs(store: Store, run_id: str, generations: Sequence[int], max_turns: int) -> list[SuiteItem]:
    """The valid designs of these generations as a suite's items, won as in the run."""
    items = []
    for row in store.query(DESIGNS, {"run": run_id, "generations": list(generations)}):
        family, size = describe_source(str(row["source"]))
        items.append(
            SuiteItem(
                env_id=str(row["env_id"]),
                family=family,
                size=size,
                skill=str(row["skill"]),
                source=str(row["source"]),
                hint=str(row["hint"]),
                max_turns=max_turns,
                win_return=float(row["witness_min_return"]),
            )
        )
    return items


def read_openings(store: Store, run_id: str) -> set[str]:
    """Digests of what the run's plays showed first, both arms and probes."""
    return {digest(str(row["opening"])) for row in store.query(OPENINGS, {"run": run_id})} - {""}
