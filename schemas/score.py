"""Score stage: the paired arms of one environment at one step, and a generation's designer rewards."""

from __future__ import annotations

from schemas.common import Part, Record, Reference, VersionSpan


class PlayReturn(Part, frozen=True, kw_only=True):
    """One counted play of an arm."""

    play_id: str
    index: int
    episode_return: float
    won: bool
    reference: Reference
    versions: VersionSpan = VersionSpan()  # that played it


class ArmScore(Part, frozen=True, kw_only=True):
    """An arm's plays in index order. Lost plays, and their partners in the other arm, are not among them."""

    arm: str
    plays: list[PlayReturn]
    mean: float  # 0 where there is none
    win_rate: float


class EnvScored(Record, frozen=True, kw_only=True):
    """The plays of one environment at one step. Written by streams/score."""

    env_id: str
    step: int
    generation: int
    arms: list[ArmScore]
    lost: int = 0  # plays given up, both arms
    dropped: int = 0  # partners dropped with them
    pairs: int = 0  # distinct seeds with both arms
    regret: float = 0.0
    regret_se: float = 0.0
    evicted: str = ""  # reason, or empty
    earlier_regret: float = 0.0  # the hint's gain for the frozen earlier policy, where the recipe asks for it
    earlier_regret_se: float = 0.0
    earlier_pairs: int = 0
    repeat: int = 0  # of the plays (free schedule)
    probe: bool = False  # of a generation before the one that played it: arms and regret are those of probe plays


class ScoredDesign(Part, frozen=True, kw_only=True):
    """A design's reward over its window, as the designer is trained on it."""

    env_id: str
    slot: int
    design_attempt: int
    skill: str
    document_id: str
    group: str
    proposal: Reference
    valid: bool
    w: float  # mean return of plain plays over the window
    win_rate: float
    hint_win_rate: float
    regret: float
    regret_se: float
    reward: float
    advantage: float
    trained: bool
    evicted: str = ""
    repeated: float = 0.0
    identical: bool = False
    earlier_regret: float = 0.0
    earlier_regret_se: float = 0.0
    uncredited: bool = False  # regret earned nothing: the hint did not help the earlier policy
    versions: VersionSpan = VersionSpan()  # that wrote it
    pairs: int = 0  # distinct seeds with both arms, behind the regret


class ProbedEnvironment(Part, frozen=True, kw_only=True):
    """An earlier environment as it stands for the policy that played it again at this generation's first step."""

    env_id: str
    generation: int  # its own
    slot: int
    skill: str
    plays: int  # counted ones, both arms; 0: all were lost and nothing new is known
    lost: int
    w: float
    win_rate: float
    hint_win_rate: float
    regret: float
    regret_se: float
    pairs: int
    reward: float  # that its design would earn now
    evicted: str = ""


class GenerationClosed(Record, frozen=True, kw_only=True):
    """Scores of all K steps are in. Written by streams/batch."""

    generation: int
    designs: list[ScoredDesign]  # validated members in slot order, then trained rejected ones
    proposed: int
    valid: int
    rejected_by_rule: dict[str, int]
    missing: int
    duplicates: int
    win_rate: float  # plain arm, mean over members
    hint_win_rate: float
    regret: float  # mean over members
    regret_se: float
    designer_reward: float  # mean over members
    repeats: float  # share of members with similarity >= .8 to an earlier design
    vendi: float  # Vendi score / n
    lost: int
    empty: str = ""  # cause where there is no member
    probes: list[ProbedEnvironment] = []
    repeated: dict[str, int] = {}  # earlier environment -> how many of this generation's designs repeat it, dropped ones too
