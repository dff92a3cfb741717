"""A policy on a suite of held-out environments, so that two policies can be compared instance by instance.

In: a policy folder, a suite. Out: an EvalFinished record with one byte an instance in an order that only the suite, the seeds
and the limit decide, or of any model folder a ModelEvaluation. Called by `spade eval`, the ablations and the demo. Environment
and sampling seeds derive from the instance and never from the policy. Instances are played in a few large batches, in jails.
Blocks; raises SettingsError, ModelError, SandboxError.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.dialects import Dialect, recipe_dialect
from infra.evaluations import ModelEvaluation, make_evaluation
from infra.policystore import PolicyStore, files_digest, policy_files
from infra.suites import SuiteItem, evaluation_seed, load_suite
from schemas import ids
from schemas.common import SamplingSettings, pack_floats
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment
from schemas.settings import Recipe
from schemas.train import EvalFinished, PolicyPublished
from workers.episodes import Episode, Rules, play_all
from workers.gate import static
from workers.gate.rules import Refused
from workers.policies import bare_sampler
from workers.samplers.base import Sampler
from workers.sandbox.base import Sandbox
from workers.sessions import SessionTable

TRIES = 3
AT_ONCE = 256  # instances of one batch


@dataclass(frozen=True)
class Instance:
    """One item of a suite on one seed."""

    item: SuiteItem
    index: int


def instances_of(items: Sequence[SuiteItem], seeds_per_item: int, limit: int = 0) -> list[Instance]:
    """All items on their first seed, then on their second, ...; the first `limit` of them (0: all)."""
    every = [Instance(item, index) for index in range(seeds_per_item) for item in items]
    return every[:limit] if limit else every


def play_items(
    sampler: Sampler,
    sandbox: Sandbox,
    dialect: Dialect,
    instances: Sequence[Instance],
    settings: SamplingSettings,
    context_tokens: int,
    *,
    arm: str = PLAIN,
    salt: str = "",
) -> list[Episode]:
    """The ended episodes, in the order of the instances. `salt` names a fresh set of seeds of the same items."""
    episodes = [_episode(instance, arm, salt) for instance in instances]
    rules = Rules(settings, max((one.max_turns for one in episodes), default=1), context_tokens, "zero")
    by_item = sorted(episodes, key=lambda episode: episode.environment.env_id)  # few jails live at a time
    for start in range(0, len(by_item), AT_ONCE):
        play_all(by_item[start : start + AT_ONCE], sampler, SessionTable(sandbox, TRIES), dialect, rules)
    return episodes


def evaluate(
    recipe: Recipe,
    policy: PolicyPublished | Path,
    *,
    policy_place: str = "",
    run_id: str = "",
    suite: str = "",
    seeds_per_item: int = 0,
    limit: int = 0,
    hinted: bool = False,
    salt: str = "",
    sandbox: Sandbox | None = None,
) -> EvalFinished:
    """Evaluates a published policy (fetched from `policy_place`, canary checked) or a model folder (version -1).

    Empty values are the recipe's. An instance that the infrastructure failed in every try counts as not won.
    """
    from workers.sandbox import open_sandbox

    suite = suite or recipe.evaluation.suite
    instances = instances_of(
        load_suite(suite), seeds_per_item or recipe.evaluation.seeds_per_item, limit or recipe.evaluation.limit
    )
    sampler = bare_sampler(recipe, lambda: False)
    if isinstance(policy, PolicyPublished):
        folder = PolicyStore(policy_place).fetch(policy)
        sampler.load(policy, folder)
    else:
        folder = policy
        sampler.load_unpublished(folder, -1, "")
    dialect = recipe_dialect(recipe, folder)
    box = recipe.sandbox
    jails = sandbox or open_sandbox(box.mode, required_level=box.level, packages=box.packages)
    try:
        episodes = play_items(
            sampler,
            jails,
            dialect,
            instances,
            recipe.rollout.sampling.on_wire(),
            recipe.rollout.context_tokens,
            arm=HINTED if hinted else PLAIN,
            salt=salt,
        )
    finally:
        if sandbox is None:
            jails.close()
    return _record(run_id, suite, sampler, instances, episodes, hinted)


def evaluate_models(
    recipe: Recipe,
    folders: Sequence[Path],
    *,
    suite: str = "",
    seeds_per_item: int = 0,
    limit: int = 0,
    hinted: bool = False,
    salt: str = "",
    sandbox: Sandbox | None = None,
    shown: Callable[[list[str]], None] | None = None,
) -> Iterator[ModelEvaluation]:
    """The model folders one after the other on the same instances, in one set of jails. Empty values are the recipe's.

    `shown` is given what each instance shows first ("" where the infrastructure failed it), once a model.
    """
    from workers.sandbox import open_sandbox

    suite = suite or recipe.evaluation.suite
    items = load_suite(suite)
    instances = instances_of(items, seeds_per_item or recipe.evaluation.seeds_per_item, limit or recipe.evaluation.limit)
    box, arm = recipe.sandbox, HINTED if hinted else PLAIN
    settings, context = recipe.rollout.sampling.on_wire(), recipe.rollout.context_tokens
    sampler = bare_sampler(recipe, lambda: False)
    jails = sandbox or open_sandbox(box.mode, required_level=box.level, packages=box.packages)
    try:
        for folder in folders:
            digest = files_digest(folder, policy_files(folder))
            sampler.load_unpublished(folder, -1, digest)
            played = play_items(sampler, jails, recipe_dialect(recipe, folder), instances, settings, context, arm=arm, salt=salt)
            if shown is not None:
                shown([episode.turns[0].observation if episode.turns else "" for episode in played])
            yield make_evaluation(
                items,
                bytes(episode.won() for episode in played),
                model=folder.name,
                model_digest=digest,
                suite=suite,
                salt=salt,
                arm=arm,
                formed=sum(_is_formed(episode) for episode in played) / len(played),
                tokens=sum(span.end - span.start for episode in played for span in episode.spans),
            )
    finally:
        if sandbox is None:
            jails.close()


def _is_formed(episode: Episode) -> bool:
    return bool(episode.turns) and not any(turn.fault for turn in episode.turns)


def _record(
    run_id: str, suite: str, sampler: Sampler, instances: Sequence[Instance], episodes: Sequence[Episode], hinted: bool
) -> EvalFinished:
    won = [episode.won() for episode in episodes]
    formed = [_is_formed(episode) for episode in episodes]
    families: dict[str, list[bool]] = defaultdict(list)
    for instance, one in zip(instances, won, strict=True):
        families[instance.item.family].append(one)
    kind = "sampled, with hint" if hinted else "sampled"
    return EvalFinished(
        run_id=run_id,
        event_id=ids.event_id("eval", run_id, suite, sampler.policy_version, sampler.policy_digest, kind, len(won)),
        created_at=time.time(),
        suite=suite,
        policy_version=sampler.policy_version,
        policy_digest=sampler.policy_digest,
        items=len(won),
        won=bytes(won),
        formed=bytes(formed),
        returns=pack_floats([episode.episode_return("zero") for episode in episodes]),
        win_rate=sum(won) / len(won),
        by_family={family: sum(ones) / len(ones) for family, ones in sorted(families.items())},
        sampling=kind,
    )


def _play_text(source: str) -> str:
    """The source without `solution`, where it has one."""
    try:
        return static.cut_solution(source)
    except Refused:  # a suite's item: it was cut before
        return source


def _episode(instance: Instance, arm: str, salt: str) -> Episode:
    item = instance.item
    play_id = ids.derive("eval-play", salt, item.env_id, instance.index, arm)
    environment = PlayEnvironment(
        env_id=item.env_id, source=_play_text(item.source), hint=item.hint, witness_min_return=item.win_return, reward_min=0.0
    )
    play = Play(
        play_id=play_id,
        env_id=item.env_id,
        arm=arm,
        index=instance.index,
        env_seed=evaluation_seed(item.env_id, instance.index, salt),
        sampling_seed=ids.sampling_seed(play_id),
    )
    return Episode(play, environment, item.max_turns)
