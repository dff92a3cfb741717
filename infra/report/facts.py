"""What a report tells, as plain data. Filled by infra.report.queries from the store; shown by terminal, page and picture."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GenerationFacts:
    """One generation: what was designed, how it was played, what the designer got."""

    generation: int
    proposed: int
    valid: int
    rejected: dict[str, int]  # by rule
    win_rate: float  # without hint
    hint_win_rate: float
    regret: float
    regret_se: float
    designer_reward: float
    policy_version: int  # that designed it
    lost: int = 0
    repeats: float = 0.0
    vendi: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, from first to last record


@dataclass(frozen=True)
class RoleFacts:
    """One role in one step."""

    samples: int
    loss: float
    ess: float
    lag: int


@dataclass(frozen=True)
class StepFacts:
    """One optimizer step; it publishes policy version `step` + 1."""

    step: int
    drain: bool
    skipped: str
    loss: float
    roles: dict[str, RoleFacts]
    seconds: dict[str, float]  # by phase
    stale: int = 0  # samples dropped for age while its batch was filled (free schedule)
    asked_again: int = 0  # its samples that had been


@dataclass(frozen=True)
class ExampleFacts:
    """An environment that the model wrote."""

    env_id: str
    title: str  # why it is shown
    skill: str
    generation: int
    source: str
    hint: str
    win_rate: float
    hint_win_rate: float
    regret: float


@dataclass(frozen=True)
class TurnFacts:
    """One exchange of an episode."""

    observation: str
    action: str
    reward: float


@dataclass(frozen=True)
class EpisodeFacts:
    """One episode in full."""

    play_id: str
    env_id: str
    arm: str
    step: int
    hint: str  # shown to the agent; empty in the plain arm
    turns: list[TurnFacts]
    final_observation: str
    episode_return: float
    won: bool
    end_reason: str


@dataclass(frozen=True)
class EvaluationFacts:
    """A policy before and after on the same held-out instances."""

    suite: str
    items: int
    version_before: int
    version_after: int
    before: float
    after: float
    difference: float
    low: float  # of the 95 % interval of the difference
    high: float
    clusters: int  # environments; instances of one environment are not independent
    families: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class GateFacts:
    """What the gate's judgements cost. Verdicts taken from an earlier judgement of the same design cost nothing."""

    judged: int = 0
    taken: int = 0
    median_cpu_s: float = 0.0  # of one judgement, its jails included
    most_cpu_s: float = 0.0
    total_cpu_s: float = 0.0
    median_wall_s: float = 0.0


@dataclass(frozen=True)
class AuditFacts:
    """Plays that were repeated in a fresh jail, by a hash of their ids."""

    requested: int = 0
    finished: int = 0
    differing: int = 0
    lost: int = 0


@dataclass(frozen=True)
class EvictionFacts:
    """An environment that was taken out of its generation."""

    env_id: str
    generation: int
    step: int  # from this step on none of its plays was trained
    reason: str
    voided: int  # its plays from that step on


@dataclass(frozen=True)
class RunFacts:
    """Everything that the report shows."""

    run_id: str
    recipe: str
    minutes: float
    generations: list[GenerationFacts]
    steps: list[StepFacts]
    examples: list[ExampleFacts]
    episode: EpisodeFacts | None
    evaluation: EvaluationFacts | None
    records: dict[str, int] = field(default_factory=dict)  # stored rows by table
    gate: GateFacts = field(default_factory=GateFacts)
    audits: AuditFacts = field(default_factory=AuditFacts)
    evictions: list[EvictionFacts] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    uncredited: int = -1  # designs whose hint did not help the earlier policy; -1: the recipe does not ask
