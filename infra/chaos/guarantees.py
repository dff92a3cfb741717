"""Whether a run's log and store show what was promised: each sample trained once, each play scored once, memory equal to the log.

In: Evidence of a run, its planned batches, rows of the store, and where there is one the evidence of the same run undisturbed.
Out: findings, each with what was seen. Called by `spade chaos`. Pure but for `stored_places`, which asks the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.chaos.evidence import Evidence, Place
from infra.clickhouse import Store
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import AGENT, DESIGNER

SHOWN = 3  # examples that a finding names
Tables = Mapping[Topic, tuple[str, ...]]  # topic -> its tables, the one with a row a record last
Stored = Mapping[str, Mapping[str, Place]]  # table -> event id -> where the row's record stood
REWARDS = "rewards"


@dataclass(frozen=True)
class Finding:
    """One guarantee: whether it held, and what was seen."""

    name: str
    holds: bool
    told: str


def check_log(evidence: Evidence, recipe: Recipe, planned: Sequence[int]) -> list[Finding]:
    """What the log alone shows. `planned`: the numbers of the batches that the schedule asks for."""
    return [
        _finished(evidence),
        _batches(evidence, planned),
        _trained_once(evidence),
        _scored_once(evidence),
        _answered(evidence),
        _stale(evidence, recipe),
        _policies(evidence),
        _copies(evidence, free=recipe.schedule.kind == "free"),
    ]


def check_store(evidence: Evidence, tables: Tables, stored: Stored, rewards: int) -> Finding:
    """Whether the store holds a row of each record, from its first copy. Dead letters are left out: runs share their rows."""
    wrong, rows = [], 0
    for table in sorted({names[-1] for names in tables.values()} - {tables[Topic.DEAD_LETTER][-1]}):
        topics = [topic for topic, names in tables.items() if names[-1] == table]
        expected = {event_id: place for topic in topics for event_id, place in evidence.places[topic].items()}
        found = stored.get(table, {})
        rows += len(found)
        missing, beyond = expected.keys() - found.keys(), found.keys() - expected.keys()
        moved = [one for one in expected.keys() & found.keys() if expected[one] != found[one]]
        wrong += [f"{table}: {len(missing)} missing"] * bool(missing) + [f"{table}: {len(beyond)} too many"] * bool(beyond)
        wrong += [f"{table}: {len(moved)} not from the first copy"] * bool(moved)
    designs = sum(evidence.rewards.values())
    if rewards != designs:
        wrong.append(f"{REWARDS}: {rewards} for {designs} designs")
    return Finding("memory equals the log", not wrong, "; ".join(wrong) or f"{rows + rewards} rows, each from its first copy")


def compare(evidence: Evidence, calm: Evidence) -> list[Finding]:
    """Holds a disturbed run against the same run (the same id) undisturbed."""
    ours, theirs = _trained(evidence), _trained(calm)
    differing = sorted((ours - theirs).keys() | (theirs - ours).keys())
    same = Finding(
        "trained samples are those of the undisturbed run",
        not differing,
        f"{len(differing)} differ: {_few(differing)}" if differing else f"{sum(ours.values())} samples",
    )
    lost = len(_lost(evidence)) + len(_lost(calm))
    digests = [one.finished.final_digest[:16] if one.finished else "no end" for one in (evidence, calm)]
    equal = digests[0] == digests[1] != "no end"
    told = f"digest {digests[0]}" if equal else f"{digests[0]}, undisturbed {digests[1]}"
    if lost and not equal:
        told += f" (not promised: {lost} plays or designs were recorded as lost)"
    return [same, Finding("final weights are those of the undisturbed run", equal, told)]


def stored_places(store: Store, run_id: str, tables: Tables) -> tuple[dict[str, dict[str, Place]], int]:
    """The store's rows of a run by table and event id, and how many designs have a reward. Raises StoreError."""
    found = {}
    for table in sorted({names[-1] for names in tables.values()}):
        sql = f"SELECT event_id, _partition, _offset FROM {table} FINAL WHERE run_id = {{run:String}}"  # noqa: S608  (our own names)
        rows = store.query(sql, {"run": run_id})
        found[table] = {str(row["event_id"]): (int(row["_partition"]), int(row["_offset"])) for row in rows}
    (row,) = store.query(f"SELECT count() AS n FROM {REWARDS} FINAL WHERE run_id = {{run:String}}", {"run": run_id})  # noqa: S608
    return found, int(row["n"])


def _finished(evidence: Evidence) -> Finding:
    last = evidence.finished
    told = f"{last.steps} steps, {last.drain_steps} drain steps: {last.cause}" if last else "the log holds no run-finished record"
    return Finding("the run has finished", last is not None, told)


def _batches(evidence: Evidence, planned: Sequence[int]) -> Finding:
    missing = sorted(set(planned) - evidence.batches.keys())
    beyond = sorted(evidence.batches.keys() - set(planned))
    wrong = [f"missing {_few(missing)}"] * bool(missing) + [f"not planned {_few(beyond)}"] * bool(beyond)
    wrong += [f"written anew {_few(evidence.batches_again)}"] * bool(evidence.batches_again)
    return Finding("each planned batch is there once", not wrong, "; ".join(wrong) or f"{len(planned)} batches")


def _trained_once(evidence: Evidence) -> Finding:
    trained = _trained(evidence)
    applied = {step for step, finished in evidence.steps.items() if not finished.skipped}
    planned = Counter(sample.sample_id for step in applied & evidence.batches.keys() for sample in evidence.batches[step].samples)
    twice = [sample for sample, times in trained.items() if times > 1]
    never = [sample for sample in planned if sample not in trained]
    beyond = [sample for sample in trained if sample not in planned]
    untrained = sorted(evidence.batches.keys() - evidence.steps.keys())
    wrong = [f"{len(some)} {what}: {_few(some)}" for some, what in ((twice, "twice"), (never, "never")) if some]
    wrong += [f"{len(beyond)} in no batch: {_few(beyond)}"] * bool(beyond)
    wrong += [f"batches without a step: {_few(untrained)}"] * bool(untrained)
    skipped = len(evidence.steps) - len(applied)
    told = f"{sum(trained.values())} samples" + (f"; {skipped} steps skipped" if skipped else "")
    return Finding("each planned sample is trained once", not wrong, "; ".join(wrong) or told)


def _scored_once(evidence: Evidence) -> Finding:
    plays = Counter(play for plays in evidence.scores.values() for play in plays)
    twice = [play for play, times in plays.items() if times > 1]
    unscored = sorted({group for group in evidence.plays_asked.values() if group not in evidence.scores})
    wrong = [f"{len(twice)} plays twice: {_few(twice)}"] * bool(twice)
    wrong += [f"environments scored anew: {_few(evidence.scored_again)}"] * bool(evidence.scored_again)
    wrong += [f"{len(unscored)} never: {_few(unscored)}"] * bool(unscored)
    told = f"{len(plays)} plays of {len(evidence.scores)} environments and steps"
    return Finding("each episode is scored once", not wrong, "; ".join(wrong) or told)


def _answered(evidence: Evidence) -> Finding:
    open_work = {
        "designs not written": evidence.designs_asked - evidence.designs_written.keys(),
        "designs not judged": evidence.designs_written.keys() - evidence.designs_judged,
        "plays not ended": evidence.plays_asked.keys() - evidence.plays_ended.keys(),
        "audits not ended": evidence.audits_asked - evidence.audits_ended,
        "plays that nobody asked for": evidence.plays_ended.keys() - evidence.plays_asked.keys(),
    }
    wrong = [f"{len(some)} {what}: {_few(sorted(some))}" for what, some in open_work.items() if some]
    lost = len(_lost(evidence))
    told = f"{len(evidence.designs_asked)} designs, {len(evidence.plays_asked)} plays, {len(evidence.audits_asked)} audits"
    return Finding("everything asked for is answered", not wrong, "; ".join(wrong) or f"{told}; {lost} lost")


def _stale(evidence: Evidence, recipe: Recipe) -> Finding:
    bounds = {agent: recipe.schedule.lag_limit(AGENT if agent else DESIGNER) for agent in (True, False)}
    samples = [(step, sample) for step, batch in evidence.batches.items() for sample in batch.samples]
    older = [
        sample.sample_id
        for step, sample in samples
        if step - sample.policy_version != sample.lag or not 0 <= sample.lag <= bounds[sample.role == AGENT]
    ]
    most = {agent: max((one.lag for _, one in samples if (one.role == AGENT) == agent), default=0) for agent in bounds}
    told = f"at most {most[True]} of {bounds[True]} (agent), {most[False]} of {bounds[False]} (designer)"
    return Finding("no sample is older than its bound", not older, f"{len(older)} are: {_few(older)}" if older else told)


def _policies(evidence: Evidence) -> Finding:
    last = max(evidence.steps, default=-1) + 1
    steps = {0, *(step + 1 for step in evidence.steps)}
    missing = sorted(steps - evidence.policies.keys())
    many = sorted(version for version, digests in evidence.policies.items() if len(set(digests)) > 1)
    wrong = [f"missing {_few(missing)}"] * bool(missing) + [f"two digests {_few(many)}"] * bool(many)
    if evidence.finished and evidence.policies.get(last, [""])[0] != evidence.finished.final_digest:
        wrong.append(f"the run's last digest is not that of policy {last}")
    return Finding("each policy version has one digest", not wrong, "; ".join(wrong) or f"{len(evidence.policies)} versions")


def _copies(evidence: Evidence, *, free: bool) -> Finding:
    """In the free schedule a play that is repeated after a kill is by the policy that is newest then: its first copy counts."""
    number = sum(evidence.copies.values())
    played = f"{Topic.ROLLOUT_FINISHED.wire}:"
    unequal = [one for one in evidence.unequal if not (free and one.startswith(played))]
    told = f"{number} copies, all equal to their first" if number else "no record was written twice"
    if len(unequal) < len(evidence.unequal):
        newer = len(evidence.unequal) - len(unequal)
        told = f"{number} copies; {newer} of plays that were repeated by a newer policy, the first of each counts"
    wrong = f"{len(unequal)} of {number} differ: {_few(unequal)}"
    return Finding("copies change nothing", not unequal, wrong if unequal else told)


def _trained(evidence: Evidence) -> Counter[str]:
    return Counter(sample for finished in evidence.steps.values() for sample in finished.trained)


def _lost(evidence: Evidence) -> list[str]:
    return [one for ended in (evidence.designs_written, evidence.plays_ended) for one, why in ended.items() if why]


def _few(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:SHOWN])) + (", ..." if len(things) > SHOWN else "")
