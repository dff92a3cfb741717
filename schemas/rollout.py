"""Rollout stage: which plays are asked for, and how each ended."""

from __future__ import annotations

from schemas.common import Part, Record, Reference, SamplingSettings, Span

PLAIN = "plain"
HINTED = "hint"
# The same two arms played by a frozen earlier policy: never trained, they only show whom a hint helps.
EARLIER_PLAIN = "earlier-plain"
EARLIER_HINTED = "earlier-hint"
EARLIER = frozenset({EARLIER_PLAIN, EARLIER_HINTED})
# And of an environment of an earlier generation, by the present policy: never trained, they keep its difficulty current.
PROBE_PLAIN = "probe-plain"
PROBE_HINTED = "probe-hint"
PROBES = frozenset({PROBE_PLAIN, PROBE_HINTED})
WITH_HINT = frozenset({HINTED, EARLIER_HINTED, PROBE_HINTED})


class PlayEnvironment(Part, frozen=True, kw_only=True):
    """What a worker needs to play an environment: the play text, never the solution."""

    env_id: str
    source: str
    hint: str
    witness_min_return: float
    reward_min: float


class Play(Part, frozen=True, kw_only=True):
    """One episode to be played."""

    play_id: str
    env_id: str
    arm: str  # PLAIN | HINTED | EARLIER_PLAIN | EARLIER_HINTED | PROBE_PLAIN | PROBE_HINTED
    index: int
    env_seed: int  # same in both arms
    sampling_seed: int


class RolloutRequested(Record, frozen=True, kw_only=True):
    """A unit of plays of one step, sampled as one batch by one worker. Written by streams/rollout."""

    unit_id: str
    step: int
    generation: int
    policy_version: int
    settings: SamplingSettings
    max_turns: int
    context_tokens: int
    environments: list[PlayEnvironment]
    plays: list[Play]
    plays_expected: dict[str, int]  # env_id -> plays of this step, all arms, all units
    newest: bool = False  # free schedule: by the newest policy that is published when a worker begins, at least policy_version
    repeat: int = 0  # free schedule: how often these plays were asked for before, and were too old for their batch


class Turn(Part, frozen=True, kw_only=True):
    """One exchange: what the environment showed, and what the agent did."""

    observation: str
    action: str
    reward: float
    action_start: int  # token range of the sampled action in the episode's tokens
    action_end: int
    fault: str = ""  # what is wrong with the form of the turn; then the action may be empty
    cut: str = ""  # "" | turn | context: the limit that ended the turn before the model did


class RolloutFinished(Record, frozen=True, kw_only=True):
    """One episode. Tokens in the order the policy saw them; sampled ones lie in `spans`. Written by workers/rollout."""

    play_id: str
    unit_id: str
    env_id: str
    step: int
    generation: int
    arm: str
    index: int
    env_seed: int
    plays_expected: int  # plays of (env_id, step): the group's size
    tokens: bytes = b""  # int32, the whole episode
    logprobs: bytes = b""  # float32, one for each token; 0 where not sampled
    spans: list[Span] = []
    turns: list[Turn] = []
    final_observation: str = ""
    terminated: bool = False
    episode_return: float = 0.0  # clamped to [-1, 1]; by the recipe's rule where not terminated
    won: bool = False  # return >= smallest return of the witness in the gate
    end_reason: str = ""  # terminated | truncated | turns | context | oom | cpu | ... | non_finite
    lost: str = ""  # infrastructure reason after the last try; then nothing else counts
    witness_min_return: float = 0.0
    reward_min: float = 0.0
    repeat: int = 0  # of the request


class AuditRequested(Record, frozen=True, kw_only=True):
    """A play to be repeated in a fresh jail. Written by streams/score."""

    play_id: str
    env_id: str
    step: int
    generation: int
    source: str
    play: Reference
    repeat: int = 0  # of the play


class AuditFinished(Record, frozen=True, kw_only=True):
    """Whether the repeated play was equal. Written by workers/validate."""

    play_id: str
    env_id: str
    step: int
    generation: int
    equal: bool
    difference: str = ""
    lost: str = ""
    repeat: int = 0  # of the play
