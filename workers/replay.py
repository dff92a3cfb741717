"""Repeats an episode of the log bit for bit: its actions in a fresh jail, and its sampling while its policy is kept.

In: a source of records and an episode's id. Out: the episode, and a Check of each part: equal, differs (with the first
difference), or unchecked (with the reason). Called by `spade replay`. Blocks for the plays; raises SettingsError (no such
episode), SandboxError, and what the source raises. Bit equality of the sampling is promised on the same kind of machine, with the
same libraries and threads; that of the actions wherever the jail runs.

The whole unit is sampled again, since one unit is one batch: so no rounding depends on which plays stood beside the episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from infra.clickhouse import Store
from infra.dialects import Dialect, recipe_dialect
from infra.kafka import fetch
from infra.policystore import PolicyStore
from infra.recordsource import RecordSource
from infra.runs import Run, read_recipe, tokenizer_digest
from schemas.common import Reference, unpack_floats, unpack_ints
from schemas.errors import ModelError, PolicyError, SettingsError
from schemas.process import BrokerSettings
from schemas.rollout import PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.run import RunStarted
from schemas.settings import RolloutSettings
from schemas.topics import Topic
from schemas.train import PolicyPublished
from workers.audit import AuditInterruptedError, repeat_play
from workers.episodes import Episode, Rules, play_all
from workers.policies import make_sampler
from workers.rollout import finished
from workers.samplers.base import Sampler
from workers.sandbox.base import Sandbox
from workers.sessions import SessionTable

Outcome = Literal["equal", "differs", "unchecked"]
NOT_DECIDED = frozenset({"created_at", "tries"})  # told, never compared
SHORT = 80
_PLACES = tuple(
    f"SELECT event_id, _topic, _partition, _offset FROM {table} FINAL "  # noqa: S608  (our own names)
    "WHERE run_id = {run_id:String} AND unit_id = {unit_id:String}"
    for table in ("requests", "episodes")
)


@dataclass(frozen=True)
class Recorded:
    """An episode, the request that asked for it, and every play of its unit by id; each as it was first written."""

    play: RolloutFinished
    request: RolloutRequested
    unit: dict[str, RolloutFinished]

    @property
    def environment(self) -> PlayEnvironment:
        """The environment that was played."""
        return next(one for one in self.request.environments if one.env_id == self.play.env_id)


@dataclass(frozen=True)
class Check:
    """What the repetition of one part gave. `detail`: what was equal, the first difference, or why it was not checked."""

    part: Literal["actions", "sampling"]
    outcome: Outcome
    detail: str


def find_episode(source: RecordSource, play_id: str, run_id: str = "") -> Recorded:
    """Looks through the log, or an archive, for the episode; of copies the first counts. Raises SettingsError."""
    for one in source.scan([Topic.ROLLOUT_REQUESTED], run_id):
        request = one.record
        if isinstance(request, RolloutRequested) and any(play.play_id == play_id for play in request.plays):
            break
    else:
        raise SettingsError(
            f"{source.name} asks for no episode {play_id}{f' in run {run_id}' if run_id else ''}",
            "Episodes are named by play_id: `SELECT play_id FROM episodes`, or the dashboard",
        )
    unit: dict[str, RolloutFinished] = {}
    for one in source.scan([Topic.ROLLOUT_FINISHED], request.run_id):
        if isinstance(one.record, RolloutFinished) and one.record.unit_id == request.unit_id:
            unit.setdefault(one.record.play_id, one.record)
            if len(unit) == len(request.plays):
                break
    return _recorded(source.name, play_id, request, unit)


def find_stored(store: Store, broker: BrokerSettings, play_id: str) -> Recorded | None:
    """The same by the places that the memory store remembers, without a scan; None where it does not hold the episode.

    Raises StoreError, ReferenceGoneError.
    """
    rows = store.query("SELECT run_id, unit_id FROM episodes FINAL WHERE play_id = {play:String} LIMIT 1", {"play": play_id})
    found = [row for sql in _PLACES for row in store.query(sql, rows[0])] if rows else []
    places = [
        Reference(topic=row["_topic"], partition=int(row["_partition"]), offset=int(row["_offset"]), id=row["event_id"])
        for row in found
    ]
    records = list(fetch(broker, places).values())
    request = next((one for one in records if isinstance(one, RolloutRequested)), None)
    unit = {one.play_id: one for one in records if isinstance(one, RolloutFinished)}
    if request is None or len(unit) < len(request.plays):
        return None  # not all of it is stored yet
    return _recorded(f"the log at {broker.address}", play_id, request, unit)


def _recorded(where: str, play_id: str, request: RolloutRequested, unit: dict[str, RolloutFinished]) -> Recorded:
    play = unit.get(play_id)
    if play is None:
        raise SettingsError(f"episode {play_id} was asked for and {where} holds no end of it", "Wait until its unit is played")
    if play.lost:
        raise SettingsError(f"episode {play_id} was lost to the infrastructure ({play.lost})", "There is nothing to repeat")
    return Recorded(play, request, unit)


def read_run(source: RecordSource, recorded: Recorded) -> tuple[Run, PolicyPublished | None]:
    """The episode's run, and the publication of the policy that sampled it (the last one of its version and digest)."""
    request = recorded.request
    spans = [span for one in (recorded.play, *recorded.unit.values()) for span in one.spans]
    digest, version = (spans[0].policy_digest, spans[0].policy_version) if spans else ("", request.policy_version)
    started: RunStarted | None = None
    policy: PolicyPublished | None = None
    for one in source.scan([Topic.RUN_STARTED, Topic.POLICY_PUBLISHED], request.run_id):
        record = one.record
        if isinstance(record, RunStarted) and started is None:
            started = record
        elif isinstance(record, PolicyPublished) and record.version == version:
            policy = record if digest in ("", record.digest) else policy
    if started is None:
        raise SettingsError(f"{source.name} holds no first record of run {request.run_id}", "Its settings are unknown")
    return Run(started=started, recipe=read_recipe(started)), policy


def repeat_actions(recorded: Recorded, sandbox: Sandbox, tries: int = 3) -> Check:
    """The recorded actions in a session of `sandbox`: observations, rewards and the end, in order."""
    play, cause = recorded.play, ""
    for _ in range(tries):
        try:
            difference = repeat_play(sandbox, recorded.environment.source, play, recorded.request.max_turns)
        except AuditInterruptedError as problem:
            cause = str(problem)
            continue
        told = f"{len(play.turns)} turns gave the same observations, rewards and end"
        return Check("actions", "differs" if difference else "equal", difference or told)
    return Check("actions", "unchecked", f"the machine ended the jail in {tries} tries: {cause}")


def sample_again(recorded: Recorded, sampler: Sampler, sandbox: Sandbox, dialect: Dialect, settings: RolloutSettings) -> Check:
    """The episode's whole unit, sampled as one batch by `sampler`, which holds its policy, and compared play by play."""
    request = recorded.request
    rules = Rules(request.settings, request.max_turns, request.context_tokens, settings.unterminated_return)
    environments = {one.env_id: one for one in request.environments}
    episodes = [Episode(play, environments[play.env_id], request.max_turns) for play in request.plays]
    play_all(episodes, sampler, SessionTable(sandbox, settings.tries), dialect, rules)
    again = {episode.play.play_id: finished(request, episode, rules) for episode in episodes}
    lost = sum(bool(one.lost) for one in recorded.unit.values())
    note = f" ({lost} plays of its unit were lost then, which changed the batches)" if lost else ""
    name = recorded.play.play_id
    for play_id in (name, *(other for other in again if other != name)):
        was, now = recorded.unit.get(play_id), again[play_id]
        if now.lost:
            return Check("sampling", "unchecked", f"play {play_id} was lost to the machine now: {now.lost}")
        if was is not None and not was.lost and (difference := first_difference(was, now)):
            whose = "" if play_id == name else f"play {play_id} of its unit: "
            return Check("sampling", "differs", whose + difference + note)
    sampled = sum(span.end - span.start for span in recorded.play.spans)
    told = f"{sampled} token ids and log-probabilities, and those of the other {len(again) - 1 - lost} plays of its unit"
    return Check("sampling", "equal", told + note)


def replay(
    source: RecordSource,
    recorded: Recorded,
    *,
    policies: Path | None = None,
    actions_only: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> list[Check]:
    """Both parts, in jails of the run's level. `policies`: where the run's policies are now, if not where they were."""
    from workers.sandbox import open_sandbox

    run, policy = read_run(source, recorded)
    mixed = len({span.policy_version for one in (recorded.play, *recorded.unit.values()) for span in one.spans}) > 1
    level = run.recipe.sandbox.level
    fresh = open_sandbox("fresh", required_level=level)
    try:
        say(f"repeating {len(recorded.play.turns)} actions in a fresh jail ...")
        checks = [repeat_actions(recorded, fresh)]
    finally:
        fresh.close()
    if actions_only:
        return checks
    if mixed:
        return [*checks, Check("sampling", "unchecked", "its unit went on with newer policies between turns")]
    try:
        folder, published = kept_policy(run, policy, recorded.request.policy_version, policies)
        sampler = _make_sampler(run, published, folder)
        dialect = recipe_dialect(run.recipe, folder)
    except (PolicyError, ModelError) as problem:
        return [*checks, Check("sampling", "unchecked", problem.cause)]
    say(f"policy {published.version} is loaded, sampling the {len(recorded.request.plays)} plays of the unit ...")
    sandbox = open_sandbox(run.recipe.sandbox.mode, required_level=level)
    try:
        return [*checks, sample_again(recorded, sampler, sandbox, dialect, run.recipe.rollout)]
    finally:
        sandbox.close()


def kept_policy(run: Run, policy: PolicyPublished | None, version: int, policies: Path | None) -> tuple[Path, PolicyPublished]:
    """The folder of the policy that sampled, checked by digest, and its publication. Raises PolicyError telling why not."""
    if policy is None:
        raise PolicyError(f"no publication of policy {version} with the digest that sampled it stands in the log")
    name = policy.place.removeprefix("file://").rstrip("/").rpartition("/")[2]
    place = str(policies.absolute()) if policies else run.policy_place
    folder = Path(place.removeprefix("file://")) / name
    if not folder.is_dir():
        raise PolicyError(f"policy {version} is no longer kept: {folder} is not there")
    found = PolicyStore(place).fetch(msgspec.structs.replace(policy, place=str(folder)))
    if tokenizer_digest(found) != run.started.tokenizer_digest:
        raise PolicyError(f"policy {version} at {found} has another tokenizer than the run began with")
    return found, policy


def first_difference(was: RolloutFinished, now: RolloutFinished) -> str:
    """Where a play that was sampled again first differs, "" where nothing does: token ids and log-probabilities by their bits."""
    before, after = unpack_ints(was.tokens), unpack_ints(now.tokens)
    for place in range(max(len(before), len(after))):
        old, new = before[place : place + 1], after[place : place + 1]
        if old != new:
            return f"{_where(was, place)}: token {_one(new)} where {_one(old)} was"
        bits = slice(4 * place, 4 * place + 4)
        if was.logprobs[bits] != now.logprobs[bits]:
            shown = [_one(unpack_floats(one.logprobs[bits])) for one in (now, was)]
            return f"{_where(was, place)}: log-probability {shown[0]} where {shown[1]} was"
    for name in was.__struct_fields__:
        if name not in NOT_DECIDED and _decided(was, name) != _decided(now, name):
            return f"{name}: {_short(getattr(now, name))} where {_short(getattr(was, name))} was"
    return ""


def _decided(play: RolloutFinished, name: str) -> Any:
    """A field as it is compared: a turn's fault and cut follow from what else is compared, and older records do not have them."""
    value = getattr(play, name)
    return [msgspec.structs.replace(turn, fault="", cut="") for turn in value] if name == "turns" else value


def _make_sampler(run: Run, policy: PolicyPublished, folder: Path) -> Sampler:
    """The run's kind of sampler over a policy; the canary is checked."""
    model = run.recipe.model.model_copy(update={"path": str(folder)})
    sampler = make_sampler(run.recipe.model_copy(update={"model": model}), lambda: False)
    sampler.load(policy, folder)
    return sampler


def _where(play: RolloutFinished, place: int) -> str:
    for number, turn in enumerate(play.turns):
        if turn.action_start <= place < turn.action_end:
            return f"turn {number}, token {place - turn.action_start} of its action"
        if place < turn.action_start:
            return f"turn {number}, token {place} of the episode, which was shown"
    return f"token {place} of the episode"


def _one(values: list[Any]) -> str:
    return repr(values[0]) if values else "none"


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= SHORT else text[: SHORT - 3] + "..."
