"""Why an environment is what it is: everything that memory knows of one, from the document it came from to what it trained.

In: a store and an environment's id (or the beginning of one). Out: a Lineage, plain data. Called by `spade why`.
Blocks for some small queries, each by a table's key or a skip index, so that a million environments do not slow it; raises
StoreError, and SettingsError where the id names no environment or several.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from infra.clickhouse import Row, Store
from schemas.errors import SettingsError

SHOWN_IDS = 5

# Read in the order by id that prompts keep besides (a projection).
_FIND = """
SELECT run_id, generation, env_id FROM prompts WHERE startsWith(env_id, {env:String})
GROUP BY run_id, generation, env_id ORDER BY env_id LIMIT {most:UInt32}
"""
_PROMPT = """
SELECT slot, design_attempt, unit_id, skill, document_id, document_title, document_tag, document_text, memory_env_ids,
       memory_kinds, sampling_seed, reaction
FROM prompts FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
# How the environment stood whenever it was measured: when its generation closed, and by probe plays of later ones.
_MEASURED = """
SELECT measured, measured > generation AS probed, w, win_rate, hint_win_rate, regret, regret_se, pairs, reward, evicted
FROM standings FINAL
WHERE run_id = {run:String} AND skill = {skill:String} AND generation = {generation:Int32} AND env_id = {env:String}
ORDER BY measured
"""
# A prompt shows environments of its own skill only.
_PARENTS = """
SELECT env_id, generation, w, win_rate, hint_win_rate, regret, regret_se, reward, evicted
FROM standings FINAL
WHERE run_id = {run:String} AND skill = {skill:String} AND measured = generation
  AND (generation, env_id) IN (SELECT generation, env_id FROM prompts WHERE env_id IN {envs:Array(String)})
"""
_DESIGN = """
SELECT source, hint, parse_error, stop_reason, lost, prompt_tokens, completion_tokens, policy_version, policy_digest, tries,
       created_at
FROM designs FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
_VERDICT = """
SELECT valid, rule, evidence, full_source, hint, proof_json, witness_min_return, witness_mean_return, reward_min, gate_cpu_s,
       gate_wall_s, verdict_from, tries
FROM verdicts FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
_SLOTS = """
SELECT has(members, {env:String}) AS member, has(duplicates, {env:String}) AS duplicate,
       has(rejected, {env:String}) AS trained_as_refused
FROM slots_closed FINAL WHERE run_id = {run:String} AND generation = {generation:Int32}
"""
_PLAYS = """
SELECT play_id, step, arm, play_index, env_seed, policy_version, episode_return, won, end_reason, lost, length(actions) AS turns,
       sampled_tokens, tries
FROM episodes FINAL WHERE run_id = {run:String} AND generation IN {played:Array(Int32)} AND env_id = {env:String}
ORDER BY step, arm, play_index
"""
_SCORES = """
SELECT step, plain_plays, plain_mean, plain_win_rate, hint_plays, hint_mean, hint_win_rate, lost, dropped, pairs,
       regret, regret_se, evicted, earlier_regret, earlier_regret_se, earlier_pairs, probe
FROM scores FINAL WHERE run_id = {run:String} AND generation IN {played:Array(Int32)} AND env_id = {env:String} ORDER BY step
"""
_REWARD = """
SELECT w, win_rate, hint_win_rate, regret, regret_se, reward, advantage, trained, evicted, repeated, identical, uncredited
FROM rewards FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
# Batches hold ids in arrays, found by their skip index.
_TRAINED = """
SELECT b.step AS step, any(s.skipped) AS skipped, any(b.as_design) AS as_design, any(b.plays) AS plays
FROM
(
    SELECT step, has(sample_ids, {env:String}) AS as_design, length(arrayIntersect(sample_ids, {plays:Array(String)})) AS plays
    FROM batches WHERE run_id = {run:String} AND step >= {first:Int32} AND hasAny(sample_ids, {samples:Array(String)})
) AS b
LEFT JOIN (SELECT step, skipped FROM steps FINAL WHERE run_id = {run:String} AND step >= {first:Int32}) AS s ON s.step = b.step
GROUP BY step ORDER BY step
"""
_AUDITS = """
SELECT play_id, step, state, equal, difference, lost FROM audits FINAL
WHERE run_id = {run:String} AND generation IN {played:Array(Int32)} AND env_id = {env:String} AND state = 'finished'
ORDER BY step, play_id
"""
_CHILDREN = """
SELECT env_id, generation, slot, skill, memory_kinds[indexOf(memory_env_ids, {env:String})] AS kind
FROM prompts WHERE run_id = {run:String} AND generation > {generation:Int32} AND has(memory_env_ids, {env:String})
ORDER BY generation, slot LIMIT 1 BY env_id
"""
_OFFSPRING = """
SELECT env_id, w, win_rate, hint_win_rate, regret, regret_se, reward, evicted FROM rewards FINAL
WHERE run_id = {run:String} AND generation IN {born:Array(Int32)} AND env_id IN {envs:Array(String)}
"""


@dataclass(frozen=True)
class Lineage:
    """What is known of one environment. Each row is as the store gives it; None or empty where the run has not come so far."""

    run_id: str
    generation: int
    env_id: str
    prompt: Row
    parents: list[Row] = field(default_factory=list)  # with `kind`: best, easy, hard, repeated
    design: Row | None = None
    verdict: Row | None = None
    place: str = ""  # member | duplicate | refused and trained with reward 0 | refused | open
    plays: list[Row] = field(default_factory=list)
    scores: list[Row] = field(default_factory=list)
    measured: list[Row] = field(default_factory=list)  # by generation: its own, then those that played it again (probed)
    audits: list[Row] = field(default_factory=list)
    reward: Row | None = None
    trained: list[Row] = field(default_factory=list)
    children: list[Row] = field(default_factory=list)

    @property
    def proof(self) -> list[dict[str, Any]]:
        """What each rule of the gate saw."""
        return list(json.loads(self.verdict["proof_json"])) if self.verdict and self.verdict["proof_json"] else []


def read_lineage(store: Store, env_id: str, run_id: str = "") -> Lineage:
    """The environment's whole story. `env_id` may be the beginning of an id; `run_id` narrows the search."""
    found = [row for row in store.query(_FIND, {"env": env_id, "most": 1000}) if run_id in ("", row["run_id"])] if env_id else []
    if not found:
        where = f"run {run_id} of this store" if run_id else "this store"
        raise SettingsError(
            f"{where} knows no environment {env_id!r}", "Look ids up with `spade memory`, or name another --store or --run"
        )
    if len(found) > 1:
        some = ", ".join(str(row["env_id"]) for row in found[:SHOWN_IDS])
        raise SettingsError(f"{env_id!r} is the beginning of {len(found)} environments' ids: {some}", "Give more of the id")
    run, generation, env = str(found[0]["run_id"]), int(found[0]["generation"]), str(found[0]["env_id"])
    values = {"run": run, "generation": generation, "env": env}
    prompt = store.query(_PROMPT, values)[0]
    measured = store.query(_MEASURED, {**values, "skill": prompt["skill"]})
    played = {**values, "played": sorted({generation, *(int(row["measured"]) for row in measured)})}
    plays = store.query(_PLAYS, played)
    verdict = _first(store.query(_VERDICT, values))
    return Lineage(
        run_id=run,
        generation=generation,
        env_id=env,
        prompt=prompt,
        parents=_parents(store, run, prompt),
        design=_first(store.query(_DESIGN, values)),
        verdict=verdict,
        place=_place(_first(store.query(_SLOTS, values)), verdict),
        plays=plays,
        scores=store.query(_SCORES, played),
        measured=measured,
        audits=store.query(_AUDITS, played),
        reward=_first(store.query(_REWARD, values)),
        trained=_trained(store, run, env, plays),
        children=_children(store, values),
    )


def _parents(store: Store, run_id: str, prompt: Row) -> list[Row]:
    shown = list(zip(prompt["memory_env_ids"], prompt["memory_kinds"], strict=True))
    values = {"run": run_id, "skill": prompt["skill"], "envs": sorted({env_id for env_id, _ in shown})}
    known = {str(row["env_id"]): row for row in store.query(_PARENTS, values)} if shown else {}
    return [{"env_id": parent, "kind": kind, **known.get(parent, {})} for parent, kind in shown]


def _trained(store: Store, run_id: str, env_id: str, plays: list[Row]) -> list[Row]:
    """The steps that trained the design or plays of it; none comes before its first play."""
    names = [str(row["play_id"]) for row in plays]
    first = min((int(row["step"]) for row in plays), default=0)
    return store.query(_TRAINED, {"run": run_id, "env": env_id, "plays": names, "samples": [env_id, *names], "first": first})


def _children(store: Store, values: Row) -> list[Row]:
    children = store.query(_CHILDREN, values)
    if not children:
        return []
    born = sorted({int(row["generation"]) for row in children})
    known = store.query(_OFFSPRING, {**values, "born": born, "envs": sorted(_ids(children))})
    by_env = {str(row["env_id"]): row for row in known}
    return [{**row, **by_env.get(str(row["env_id"]), {})} for row in children]


def _ids(rows: list[Row]) -> list[str]:
    return [str(row["env_id"]) for row in rows]


def _first(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None


def _place(slots: Row | None, verdict: Row | None) -> str:
    if verdict is not None and not verdict["valid"]:
        return "refused, trained with reward 0" if slots and slots["trained_as_refused"] else "refused"
    if slots is None:
        return "open"
    return "member" if slots["member"] else "near-duplicate, dropped" if slots["duplicate"] else "open"
