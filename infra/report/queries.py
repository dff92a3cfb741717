"""Fills the report's facts from the store: plain SQL over the tables that the memory worker wrote.

In: a store and a run id. Out: RunFacts without the evaluation, which the demo adds. FINAL folds redelivered rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from infra.clickhouse import Row, Store
from infra.report.alarms import find_alarms
from infra.report.facts import (
    AuditFacts,
    EpisodeFacts,
    EvaluationFacts,
    EvictionFacts,
    ExampleFacts,
    GateFacts,
    GenerationFacts,
    RoleFacts,
    RunFacts,
    StepFacts,
    TurnFacts,
)
from schemas.settings import ScheduleSettings

GENERATIONS = """
SELECT g.generation AS generation, g.proposed AS proposed, g.valid AS valid, g.rejected_by_rule AS rejected,
       g.win_rate AS win_rate, g.hint_win_rate AS hint_win_rate, g.regret AS regret, g.regret_se AS regret_se,
       g.designer_reward AS designer_reward, g.repeats AS repeats, g.vendi AS vendi,
       g.lost AS lost, s.policy_version AS policy_version
FROM generations AS g FINAL
LEFT JOIN slots_closed AS s FINAL ON g.run_id = s.run_id AND g.generation = s.generation
WHERE g.run_id = {run:String} ORDER BY g.generation
"""

# From the moment that work was handed out to the last record that answers it, by the writers' clocks: told, never decides.
STAGE_SECONDS = """
SELECT generation, stage, dateDiff('millisecond', min(begun), max(ended)) / 1000 AS seconds FROM
(
    SELECT generation, 'design' AS stage, min(created_at) AS begun, max(created_at) AS ended FROM
    (
        SELECT generation, created_at FROM requests FINAL WHERE run_id = {run:String} AND stage = 'design'
        UNION ALL SELECT generation, created_at FROM designs FINAL WHERE run_id = {run:String}
    ) GROUP BY generation
    UNION ALL
    SELECT generation, 'play' AS stage, min(created_at) AS begun, max(created_at) AS ended FROM
    (
        SELECT generation, created_at FROM requests FINAL WHERE run_id = {run:String} AND stage = 'rollout'
        UNION ALL SELECT generation, created_at FROM episodes FINAL WHERE run_id = {run:String}
    ) GROUP BY generation
) GROUP BY generation, stage
"""

GATE_SECONDS = """
SELECT generation, sum(gate_wall_s) AS seconds FROM verdicts FINAL WHERE run_id = {run:String} GROUP BY generation
"""

# A judgement that ran has used CPU time; what was lost, did not parse or was known already has not.
GATE_COST = """
SELECT countIf(gate_cpu_s > 0) AS judged, countIf(gate_cpu_s = 0 AND rule NOT IN ('lost', 'parse')) AS taken,
       quantileExactIf(0.5)(gate_cpu_s, gate_cpu_s > 0) AS median_cpu_s, max(gate_cpu_s) AS most_cpu_s,
       sum(gate_cpu_s) AS total_cpu_s, quantileExactIf(0.5)(gate_wall_s, gate_cpu_s > 0) AS median_wall_s
FROM verdicts FINAL WHERE run_id = {run:String}
"""

STEPS = """
SELECT s.step AS step, s.drain AS drain, s.skipped AS skipped, s.loss AS loss,
       s.agent_samples AS agent_samples, s.agent_loss AS agent_loss, s.agent_ess AS agent_ess, s.agent_lag_max AS agent_lag_max,
       s.designer_samples AS designer_samples, s.designer_loss AS designer_loss, s.designer_ess AS designer_ess,
       s.designer_lag_max AS designer_lag_max, s.seconds AS seconds, b.stale AS stale, b.asked_again AS asked_again
FROM steps AS s FINAL
LEFT JOIN (SELECT step, stale, asked_again FROM batches FINAL WHERE run_id = {run:String}) AS b ON s.step = b.step
WHERE s.run_id = {run:String} ORDER BY s.step
"""

# Three environments to look at: where the hint helped most, the last one at the frontier, and a hard one.
EXAMPLES = """
SELECT env_id, skill, generation, full_source, hint, win_rate, hint_win_rate, regret
FROM environments WHERE run_id = {run:String} AND evicted = ''
ORDER BY %s, env_id LIMIT 1 BY source_digest LIMIT 3
"""
CHOICES = (
    ("The hint helped most here", "regret DESC"),
    (
        "Late in the run, where the designer is paid well: won about half of the time, and the hint helps",
        "(abs(win_rate - 0.5) <= 0.15 AND regret > 0) DESC, generation DESC, regret DESC",
    ),
    ("One that the agent found hard, with the hint too", "win_rate ASC, hint_win_rate ASC, generation DESC"),
)

EPISODE = """
SELECT play_id, env_id, arm, step, observations, actions, rewards, final_observation, episode_return, won, end_reason
FROM episodes FINAL WHERE run_id = {run:String} AND env_id IN {envs:Array(String)} AND lost = ''
ORDER BY arm = 'hint' DESC, won DESC, length(actions) DESC, play_id LIMIT 1
"""

AUDITS = """
SELECT countIf(state = 'requested') AS requested, countIf(state = 'finished') AS finished,
       countIf(state = 'finished' AND lost = '' AND NOT equal) AS differing,
       countIf(state = 'finished' AND lost != '') AS given_up
FROM audits FINAL WHERE run_id = {run:String}
"""

# Batches leave an environment out from the first step whose score evicted it.
EVICTIONS = """
SELECT e.env_id AS env_id, e.generation AS generation, e.first_step AS step, e.reason AS reason,
       countIf(p.play_id != '' AND p.step >= e.first_step) AS voided
FROM
(
    SELECT env_id, generation, min(step) AS first_step, argMin(evicted, step) AS reason
    FROM scores FINAL WHERE run_id = {run:String} AND evicted != '' GROUP BY env_id, generation
) AS e
LEFT JOIN (SELECT env_id, step, play_id FROM episodes FINAL WHERE run_id = {run:String} AND lost = '') AS p ON p.env_id = e.env_id
GROUP BY env_id, generation, step, reason ORDER BY step, env_id
"""

MINUTES = """
SELECT dateDiff('millisecond', min(created_at), max(created_at)) / 60000 AS minutes, max(recipe_name) AS recipe,
       max(recipe_json) AS recipe_json
FROM runs FINAL WHERE run_id = {run:String}
"""

UNCREDITED = """
SELECT countIf(uncredited) AS uncredited FROM rewards FINAL WHERE run_id = {run:String} AND valid
"""

TABLES = ("requests", "prompts", "designs", "verdicts", "slots_closed", "episodes", "audits", "scores", "rewards", "generations",
          "batches", "steps", "policies", "evaluations", "dead_letters")  # fmt: skip


def read_run(store: Store, run_id: str, evaluation: EvaluationFacts | None = None) -> RunFacts:
    """Everything that the store knows of the run. Raises StoreError."""
    run = {"run": run_id}
    seconds = _stage_seconds(store, run_id)
    head = store.query(MINUTES, run)
    recipe = json.loads(str(head[0]["recipe_json"] or "{}")) if head else {}
    generations = [_generation(row, seconds.get(int(row["generation"]), {})) for row in store.query(GENERATIONS, run)]
    steps = [_step(row) for row in store.query(STEPS, run)]
    asked = recipe.get("rollout", {}).get("earlier_plays", 0)
    examples = _examples(store, run_id)
    return RunFacts(
        run_id=run_id,
        recipe=str(head[0]["recipe"]) if head else "",
        minutes=float(head[0]["minutes"]) if head else 0.0,
        generations=generations,
        steps=steps,
        examples=examples,
        episode=_episode(store, run_id, examples),
        evaluation=evaluation,
        records={table: _count(store, table, run_id) for table in TABLES},
        gate=_gate(store, run_id),
        audits=_audits(store, run_id),
        evictions=[_eviction(row) for row in store.query(EVICTIONS, run)],
        alarms=find_alarms(generations, steps, lag_limits(recipe)),
        uncredited=int(store.query(UNCREDITED, run)[0]["uncredited"]) if asked else -1,
    )


def read_alarms(store: Store, run_id: str) -> list[str]:
    """The alarms of a run so far, without the rest of a report. Raises StoreError."""
    run = {"run": run_id}
    head = store.query(MINUTES, run)
    recipe = json.loads(str(head[0]["recipe_json"] or "{}")) if head else {}
    generations = [_generation(row, {}) for row in store.query(GENERATIONS, run)]
    return find_alarms(generations, [_step(row) for row in store.query(STEPS, run)], lag_limits(recipe))


def lag_limits(recipe: dict[str, Any]) -> dict[str, int]:
    """Most versions that a trained sample may be old, by role, of a recipe as its run's first record holds it."""
    if not recipe.get("schedule"):
        return {}
    schedule = ScheduleSettings.model_validate(recipe["schedule"])
    return {role: schedule.lag_limit(role) for role in ("agent", "designer")}


def _count(store: Store, table: str, run_id: str) -> int:
    rows = store.query(f"SELECT count() AS rows FROM {table} FINAL WHERE run_id = {{run:String}}", {"run": run_id})  # noqa: S608
    return int(rows[0]["rows"])


def _gate(store: Store, run_id: str) -> GateFacts:
    row = store.query(GATE_COST, {"run": run_id})[0]
    if not int(row["judged"]):
        return GateFacts(taken=int(row["taken"]))
    seconds = {name: float(row[name]) for name in ("median_cpu_s", "most_cpu_s", "total_cpu_s", "median_wall_s")}
    return GateFacts(judged=int(row["judged"]), taken=int(row["taken"]), **seconds)


def _audits(store: Store, run_id: str) -> AuditFacts:
    row = store.query(AUDITS, {"run": run_id})[0]
    return AuditFacts(int(row["requested"]), int(row["finished"]), int(row["differing"]), int(row["given_up"]))


def _eviction(row: Row) -> EvictionFacts:
    return EvictionFacts(
        env_id=str(row["env_id"]),
        generation=int(row["generation"]),
        step=int(row["step"]),
        reason=str(row["reason"]),
        voided=int(row["voided"]),
    )


def _stage_seconds(store: Store, run_id: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in store.query(STAGE_SECONDS, {"run": run_id}):
        found.setdefault(int(row["generation"]), {})[str(row["stage"])] = float(row["seconds"])
    for row in store.query(GATE_SECONDS, {"run": run_id}):
        found.setdefault(int(row["generation"]), {})["gate"] = float(row["seconds"])
    return found


def _generation(row: Row, seconds: dict[str, float]) -> GenerationFacts:
    return GenerationFacts(
        generation=int(row["generation"]),
        proposed=int(row["proposed"]),
        valid=int(row["valid"]),
        rejected={str(rule): int(count) for rule, count in dict(row["rejected"]).items()},
        win_rate=float(row["win_rate"]),
        hint_win_rate=float(row["hint_win_rate"]),
        regret=float(row["regret"]),
        regret_se=float(row["regret_se"]),
        designer_reward=float(row["designer_reward"]),
        policy_version=int(row["policy_version"]),
        lost=int(row["lost"]),
        repeats=float(row["repeats"]),
        vendi=float(row["vendi"]),
        seconds=seconds,
    )


def _step(row: Row) -> StepFacts:
    def role(name: str) -> RoleFacts:
        return RoleFacts(
            samples=int(row[f"{name}_samples"]),
            loss=float(row[f"{name}_loss"]),
            ess=float(row[f"{name}_ess"]),
            lag=int(row[f"{name}_lag_max"]),
        )

    return StepFacts(
        step=int(row["step"]),
        drain=bool(row["drain"]),
        skipped=str(row["skipped"]),
        loss=float(row["loss"]),
        roles={name: role(name) for name in ("agent", "designer") if int(row[f"{name}_samples"])},
        seconds={str(phase): float(value) for phase, value in dict(row["seconds"]).items()},
        stale=int(row["stale"]),
        asked_again=int(row["asked_again"]),
    )


def _examples(store: Store, run_id: str) -> list[ExampleFacts]:
    chosen: dict[str, ExampleFacts] = {}
    for title, order in CHOICES:
        rows = store.query(EXAMPLES % order, {"run": run_id})
        fresh: list[Row] = [row for row in rows if row["env_id"] not in chosen]
        if fresh:
            chosen[str(fresh[0]["env_id"])] = _example(fresh[0], title)
    return list(chosen.values())


def _example(row: Row, title: str) -> ExampleFacts:
    return ExampleFacts(
        env_id=str(row["env_id"]),
        title=title,
        skill=str(row["skill"]),
        generation=int(row["generation"]),
        source=str(row["full_source"]),
        hint=str(row["hint"]),
        win_rate=float(row["win_rate"]),
        hint_win_rate=float(row["hint_win_rate"]),
        regret=float(row["regret"]),
    )


def _episode(store: Store, run_id: str, examples: Sequence[ExampleFacts]) -> EpisodeFacts | None:
    rows = store.query(EPISODE, {"run": run_id, "envs": [example.env_id for example in examples]})
    if not rows:
        return None
    row: dict[str, Any] = rows[0]
    hints = {example.env_id: example.hint for example in examples}
    exchanges = zip(row["observations"], row["actions"], row["rewards"], strict=True)
    return EpisodeFacts(
        play_id=str(row["play_id"]),
        env_id=str(row["env_id"]),
        arm=str(row["arm"]),
        step=int(row["step"]),
        hint=hints.get(str(row["env_id"]), "") if row["arm"] == "hint" else "",
        turns=[TurnFacts(str(seen), str(action), float(reward)) for seen, action, reward in exchanges],
        final_observation=str(row["final_observation"]),
        episode_return=float(row["episode_return"]),
        won=bool(row["won"]),
        end_reason=str(row["end_reason"]),
    )
