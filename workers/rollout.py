"""The rollout worker: a unit of plays, sampled turn by turn as one batch, acted in jails. `spade work rollout`.

In: spade-rollout-requested, in the group spade-work-rollout-RUN. Out: one spade-rollout-finished a play, with its tokens, turns,
return and end; a play that the infrastructure failed in every try is recorded as lost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from infra.dialects import Dialect, recipe_dialect
from infra.runs import await_run, find_folder
from infra.telemetry import bind_run, count, get_logger, observe
from schemas.common import Record, Reference, pack_floats, pack_ints
from schemas.process import ProcessContext
from schemas.rollout import Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.settings import RolloutSettings
from schemas.topics import Topic
from schemas.train import AGENT
from workers.consumer import consume
from workers.episodes import Episode, Rules, play_all
from workers.policies import PolicyFeed, make_sampler
from workers.samplers.base import Sampler
from workers.sandbox.base import Sandbox
from workers.sessions import SessionTable
from workers.stage import Outputs, Stage, Work

DEADLINE_S = 1800.0
IDLE_ZYGOTES = 4
log = get_logger("workers.rollout")


def run(context: ProcessContext) -> None:
    """Plays until the run has finished or a signal came. Blocks; raises SpadeError."""
    from workers.sandbox import open_sandbox

    started = await_run(context)
    bind_run(started.run_id)
    recipe = started.recipe
    dialect = recipe_dialect(recipe, find_folder(recipe.model.path))
    stage = Stage("rollout", (Topic.ROLLOUT_REQUESTED,), DEADLINE_S, prefetch=2, tries=recipe.rollout.tries)
    sandbox = open_sandbox(
        recipe.sandbox.mode, required_level=recipe.sandbox.level, slots=IDLE_ZYGOTES, packages=recipe.sandbox.packages
    )

    def make_work(stop: threading.Event) -> Work:
        sampler = make_sampler(recipe, stop.is_set)
        policies = PolicyFeed(context.broker, started, sampler, stop.is_set)
        return RolloutWork(sampler, policies, sandbox, dialect, recipe.rollout, stop.is_set)

    try:
        consume(context, started, stage, make_work)
    finally:
        sandbox.close()


class RolloutWork:
    """See consumer.Work."""

    def __init__(
        self,
        sampler: Sampler,
        policies: PolicyFeed,
        sandbox: Sandbox,
        dialect: Dialect,
        settings: RolloutSettings,
        interrupted: Callable[[], bool],
    ) -> None:
        self._sampler, self._policies, self._sandbox, self._dialect = sampler, policies, sandbox, dialect
        self._settings = settings
        self._interrupted = interrupted

    def run(self, record: Record, at: Reference) -> Outputs:
        """One unit of plays; the episodes, in the order of the plays."""
        assert isinstance(record, RolloutRequested)  # the topic holds no other
        started = time.monotonic()
        self._policies.hold(record.policy_version, newest=record.newest)
        rules = Rules(record.settings, record.max_turns, record.context_tokens, self._settings.unterminated_return)
        environments = {environment.env_id: environment for environment in record.environments}
        episodes = [Episode(play, environments[play.env_id], record.max_turns) for play in record.plays]
        sessions = SessionTable(self._sandbox, self._settings.tries)
        play_all(episodes, self._sampler, sessions, self._dialect, rules, self._interrupted, lambda: self._renew(record))
        self._tell(record, episodes, time.monotonic() - started, self._sampler.policy_version)
        return [(Topic.ROLLOUT_FINISHED, finished(record, episode, rules)) for episode in episodes]

    def _renew(self, record: RolloutRequested) -> None:
        """Before a turn: the newest policy, where the recipe wants it and the unit is bound to none."""
        if self._settings.newest_each_turn and record.newest:
            self._policies.hold(record.policy_version, newest=True)

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        """Every play as lost."""
        assert isinstance(record, RolloutRequested)  # the topic holds no other
        environments = {environment.env_id: environment for environment in record.environments}
        return [(Topic.ROLLOUT_FINISHED, lost_play(record, play, environments[play.env_id], reason)) for play in record.plays]

    @staticmethod
    def _tell(record: RolloutRequested, episodes: list[Episode], seconds: float, policy_version: int) -> None:
        tokens = sum(span.end - span.start for episode in episodes for span in episode.spans)
        count("spade_tokens_sampled_total", tokens, role=AGENT)
        observe("spade_play_seconds", seconds)
        ends = Counter("lost" if episode.lost else episode.end_reason for episode in episodes)
        faults = Counter(turn.fault for episode in episodes for turn in episode.turns if turn.fault)
        for episode in episodes:
            count("spade_plays_total", arm=episode.play.arm, end="lost" if episode.lost else episode.end_reason)
        log.info(
            "plays finished",
            step=record.step,
            plays=len(episodes),
            won=sum(episode.won() for episode in episodes),
            ends=dict(ends),
            faults=dict(faults),
            tokens=tokens,
            policy_version=policy_version,
            seconds=round(seconds, 2),
        )


def finished(request: RolloutRequested, episode: Episode, rules: Rules) -> RolloutFinished:
    """The record of an ended episode."""
    if episode.lost:
        return lost_play(request, episode.play, episode.environment, episode.lost, episode.tries)
    return RolloutFinished(
        **_common(request, episode.play, episode.environment),
        tries=episode.tries,
        tokens=pack_ints(episode.tokens),
        logprobs=pack_floats(episode.logprobs),
        spans=episode.spans,
        turns=episode.turns,
        final_observation=episode.observation,
        terminated=episode.terminated,
        episode_return=episode.episode_return(rules.unterminated),
        won=episode.won(),
        end_reason=episode.end_reason,
    )


def lost_play(
    request: RolloutRequested, play: Play, environment: PlayEnvironment, reason: str, tries: int = 0
) -> RolloutFinished:
    """The record of a play that the infrastructure failed, `tries` times within this unit."""
    return RolloutFinished(**_common(request, play, environment), tries=tries, lost=reason)


def _common(request: RolloutRequested, play: Play, environment: PlayEnvironment) -> dict[str, Any]:
    return {
        "run_id": request.run_id,
        "event_id": play.play_id,
        "causation_id": request.event_id,
        "created_at": time.time(),
        "play_id": play.play_id,
        "unit_id": request.unit_id,
        "env_id": play.env_id,
        "step": request.step,
        "generation": request.generation,
        "arm": play.arm,
        "index": play.index,
        "env_seed": play.env_seed,
        "plays_expected": request.plays_expected[play.env_id],
        "witness_min_return": environment.witness_min_return,
        "reward_min": environment.reward_min,
        "repeat": request.repeat,
    }
