"""Why an environment is what it is: everything that memory knows of one, from the document it came from to what it trained.

In: a store and an environment's id (or the beginning of one). Out: a Lineage, plain data. Called by `spade why`.
Blocks for some small queries; raises StoreError, and SettingsError where the id names no environment or several.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from infra.clickhouse import Row, Store
from schemas.errors import SettingsError

SHOWN_IDS = 5

_FIND = """
SELECT run_id, generation, env_id FROM prompts WHERE startsWith(env_id, {env:String})
GROUP BY run_id, generation, env_id ORDER BY env_id LIMIT {most:UInt32}
"""
_PROMPT = """
SELECT slot, design_attempt, unit_id, skill, document_id, document_title, document_text, memory_env_ids, memory_kinds,
       sampling_seed
FROM prompts FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
_RELATIVES = """
SELECT env_id, generation, skill, valid, w, win_rate, hint_win_rate, regret, regret_se, reward, evicted
FROM rewards FINAL WHERE run_id = {run:String} AND env_id IN {envs:Array(String)}
"""
_DESIGN = """
SELECT source, hint, parse_error, stop_reason, lost, prompt_tokens, completion_tokens, policy_version, policy_digest, created_at
FROM designs FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
_VERDICT = """
SELECT valid, rule, evidence, full_source, hint, proof_json, witness_min_return, witness_mean_return, reward_min, gate_cpu_s,
       gate_wall_s, verdict_from
FROM verdicts FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
_SLOTS = """
SELECT has(members, {env:String}) AS member, has(duplicates, {env:String}) AS duplicate,
       has(rejected, {env:String}) AS trained_as_refused
FROM slots_closed FINAL WHERE run_id = {run:String} AND generation = {generation:Int32}
"""
_PLAYS = """
SELECT play_id, step, arm, play_index, env_seed, policy_version, episode_return, won, end_reason, lost, length(actions) AS turns,
       sampled_tokens
FROM episodes FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
ORDER BY step, arm, play_index
"""
_SCORES = """
SELECT step, plain_plays, plain_mean, plain_win_rate, hint_plays, hint_mean, hint_win_rate, lost, dropped, pairs,
       regret, regret_se, evicted, earlier_regret, earlier_regret_se, earlier_pairs
FROM scores FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String} ORDER BY step
"""
_REWARD = """
SELECT w, win_rate, hint_win_rate, regret, regret_se, reward, advantage, trained, evicted, repeated, identical, uncredited
FROM rewards FINAL WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String}
"""
# Batches hold ids in arrays; a step is only worth a look from the generation's first play on.
_TRAINED = """
SELECT b.step AS step, any(s.skipped) AS skipped, countIf(sample = {env:String}) AS as_design,
       countIf(sample != {env:String}) AS plays
FROM (SELECT step, arrayJoin(sample_ids) AS sample FROM batches FINAL WHERE run_id = {run:String}) AS b
LEFT JOIN (SELECT step, skipped FROM steps FINAL WHERE run_id = {run:String}) AS s ON s.step = b.step
WHERE sample = {env:String} OR sample IN (
    SELECT play_id FROM episodes WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String})
GROUP BY step ORDER BY step
"""
_AUDITS = """
SELECT play_id, step, state, equal, difference, lost FROM audits FINAL
WHERE run_id = {run:String} AND generation = {generation:Int32} AND env_id = {env:String} AND state = 'finished'
ORDER BY step, play_id
"""
_CHILDREN = """
SELECT env_id, generation, slot, skill, memory_kinds[indexOf(memory_env_ids, {env:String})] AS kind
FROM prompts FINAL WHERE run_id = {run:String} AND generation > {generation:Int32} AND has(memory_env_ids, {env:String})
ORDER BY generation, slot
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
    children = store.query(_CHILDREN, values)
    relatives = {str(row["env_id"]): row for row in _relatives(store, run, [*prompt["memory_env_ids"], *_ids(children)])}
    verdict = _first(store.query(_VERDICT, values))
    return Lineage(
        run_id=run,
        generation=generation,
        env_id=env,
        prompt=prompt,
        parents=[
            {"env_id": parent, "kind": kind, **relatives.get(parent, {})}
            for parent, kind in zip(prompt["memory_env_ids"], prompt["memory_kinds"], strict=True)
        ],
        design=_first(store.query(_DESIGN, values)),
        verdict=verdict,
        place=_place(_first(store.query(_SLOTS, values)), verdict),
        plays=store.query(_PLAYS, values),
        scores=store.query(_SCORES, values),
        audits=store.query(_AUDITS, values),
        reward=_first(store.query(_REWARD, values)),
        trained=store.query(_TRAINED, values),
        children=[{**row, **relatives.get(str(row["env_id"]), {})} for row in children],
    )


def _relatives(store: Store, run_id: str, env_ids: list[str]) -> list[Row]:
    return store.query(_RELATIVES, {"run": run_id, "envs": sorted(set(env_ids))}) if env_ids else []


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
