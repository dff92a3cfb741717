"""Episodes in step: all open ones sample their next turn in one batch, then each acts in its jail, until none is open.

In: plays with their environments. Out: an Episode each, with tokens in the order in which the policy saw them. Called by
workers.rollout and workers.evaluate, over the Sampler and Sandbox seams only: no torch and no jail here. Which episodes stand in
a batch follows from the plays alone, never from time, so a unit sampled twice gives the same.
The hint reaches the prompt of the hint arm and nothing else: never a jail, never the plain arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from infra.dialects import Dialect
from schemas.common import SamplingSettings, Span
from schemas.rollout import WITH_HINT, Play, PlayEnvironment, Turn
from workers.samplers.base import Sampler, SampleRequest, SampleResult, SamplingInterrupted
from workers.sandbox.base import SessionEnd
from workers.sessions import PlayLostError, SessionTable, end_reason

UnterminatedReturn = Literal["zero", "lowest"]
SEED_STEP = 0x9E3779B97F4A7C15  # an odd number: turns of one play never share a seed


@dataclass(frozen=True)
class Rules:
    """What bounds an episode, and what one that did not terminate is worth."""

    settings: SamplingSettings
    max_turns: int
    context_tokens: int
    unterminated: UnterminatedReturn


@dataclass
class Episode:
    """One play, as far as it has come. `end_reason` or `lost` is set once it has ended."""

    play: Play
    environment: PlayEnvironment
    max_turns: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # one a token, 0 where not sampled
    spans: list[Span] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    observation: str = ""  # the last that the environment showed
    terminated: bool = False
    end_reason: str = ""
    lost: str = ""
    tries: int = 0  # failures of the infrastructure before it came to its end

    @property
    def is_open(self) -> bool:
        return not (self.end_reason or self.lost)

    def show(self, prompt: Sequence[int]) -> None:
        """Appends tokens that the policy sees and did not write."""
        self.tokens += prompt
        self.logprobs += [0.0] * len(prompt)

    def write(self, result: SampleResult, sampler: Sampler, settings: SamplingSettings) -> tuple[int, int]:
        """Appends a sampled turn; its token range."""
        start = len(self.tokens)
        self.tokens += result.tokens
        self.logprobs += result.logprobs
        self.spans.append(
            Span(
                start=start,
                end=len(self.tokens),
                policy_version=sampler.policy_version,
                policy_digest=sampler.policy_digest,
                settings=settings,
            )
        )
        return start, len(self.tokens)

    def episode_return(self, unterminated: UnterminatedReturn) -> float:
        """The last reward where the episode terminated, clamped to [-1, 1]; else 0, or min(0, lowest reward of the gate)."""
        if self.terminated and self.turns:
            return max(-1.0, min(1.0, self.turns[-1].reward))
        return 0.0 if unterminated == "zero" else max(-1.0, min(0.0, self.environment.reward_min))

    def won(self) -> bool:
        """Whether it terminated with at least the smallest return that the witness got in the gate."""
        return self.terminated and self.episode_return("zero") >= self.environment.witness_min_return


def turn_seed(sampling_seed: int, turn: int) -> int:
    """The sampler's seed of a play's turn; 0 <= seed < 2**63."""
    return (sampling_seed + turn * SEED_STEP) % 2**63


def play_all(
    episodes: Sequence[Episode],
    sampler: Sampler,
    sessions: SessionTable,
    dialect: Dialect,
    rules: Rules,
    interrupted: Callable[[], bool] = lambda: False,
    before_turn: Callable[[], None] = lambda: None,
) -> None:
    """Plays all episodes to their ends. Blocks; raises SamplingInterrupted on a clean stop. All sessions are closed after it.

    `before_turn` is called before each turn is sampled and may load another policy into the sampler: spans tell which one wrote.
    """
    sampler.reset_cache()
    room = min(rules.context_tokens, sampler.context_tokens)
    try:
        for episode in sorted(episodes, key=_environment_of):
            _stop_if(interrupted)
            _open(episode, sessions, dialect)
        while playing := [episode for episode in episodes if _has_room(episode, room)]:
            before_turn()
            results = sampler.sample([_request(episode, dialect, rules, room) for episode in playing])
            for episode, result in sorted(zip(playing, results, strict=True), key=lambda pair: _environment_of(pair[0])):
                _stop_if(interrupted)
                _act(episode, result, sampler, sessions, dialect, rules)
        for episode in episodes:
            episode.tries = sessions.failed[episode.play.play_id]
    finally:
        sessions.close_all()


def _environment_of(episode: Episode) -> str:
    """Episodes of one environment act one after another: they share a zygote. It changes the cost and no result."""
    return episode.environment.env_id


def _open(episode: Episode, sessions: SessionTable, dialect: Dialect) -> None:
    play, environment = episode.play, episode.environment
    try:
        episode.observation = sessions.reset(play.play_id, environment.source, play.env_seed, episode.max_turns)
    except (SessionEnd, PlayLostError) as problem:
        _end(episode, problem, sessions)
        return
    episode.show(dialect.open_play(episode.observation, environment.hint if play.arm in WITH_HINT else None))


def _act(
    episode: Episode, result: SampleResult, sampler: Sampler, sessions: SessionTable, dialect: Dialect, rules: Rules
) -> None:
    start, end = episode.write(result, sampler, rules.settings)
    read = dialect.read_turn(result.tokens)
    action, cut = read.action, _cut_by(result, start, rules, sampler)
    shown, reward = episode.observation, 0.0
    try:
        step = sessions.step(episode.play.play_id, action)
        reward, episode.observation = step.reward, step.observation
    except (SessionEnd, PlayLostError) as problem:
        episode.observation = ""
        _end(episode, problem, sessions)
    else:
        episode.terminated = step.terminated
        if step.terminated or step.truncated:
            episode.end_reason = "terminated" if step.terminated else "truncated"
        elif len(episode.turns) + 1 >= episode.max_turns:
            episode.end_reason = "turns"
        else:
            episode.show(dialect.continue_play(episode.observation, result.tokens[-1] if result.tokens else None))
    episode.turns.append(
        Turn(observation=shown, action=action, reward=reward, action_start=start, action_end=end, fault=read.fault, cut=cut)
    )
    if not episode.is_open:
        sessions.close(episode.play.play_id)


def _cut_by(result: SampleResult, start: int, rules: Rules, sampler: Sampler) -> str:
    """Which limit ended a turn that the model did not end: its own, or the context, which had less room than that."""
    if result.stop_reason == "stop":
        return ""
    return "context" if min(rules.context_tokens, sampler.context_tokens) - start < rules.settings.max_tokens else "turn"


def _end(episode: Episode, problem: SessionEnd | PlayLostError, sessions: SessionTable) -> None:
    if isinstance(problem, PlayLostError):
        episode.lost = str(problem)
    else:
        episode.end_reason = end_reason(problem)
    sessions.close(episode.play.play_id)


def _has_room(episode: Episode, room: int) -> bool:
    """Whether the episode plays on; one whose context is full ends here, without the tokens that nobody answered."""
    if episode.is_open and len(episode.tokens) >= room:
        episode.end_reason = "context"
        end = episode.spans[-1].end if episode.spans else room
        del episode.tokens[end:], episode.logprobs[end:]
    return episode.is_open


def _request(episode: Episode, dialect: Dialect, rules: Rules, room: int) -> SampleRequest:
    limit = min(rules.settings.max_tokens, room - len(episode.tokens))
    return SampleRequest(
        prompt=list(episode.tokens),
        seed=turn_seed(episode.play.sampling_seed, len(episode.turns)),
        settings=msgspec.structs.replace(rules.settings, max_tokens=limit),
        stop_ids=dialect.play_stop_ids,
        session=episode.play.play_id,
    )


def _stop_if(interrupted: Callable[[], bool]) -> None:
    if interrupted():
        raise SamplingInterrupted
