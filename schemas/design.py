"""Design stage: what is asked of the designer, what it wrote, and how a generation's slots ended."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from schemas.common import Part, Record, Reference, SamplingSettings, Span, VersionSpan


class Document(Part, frozen=True, kw_only=True):
    """A corpus document, cut to the recipe's length."""

    document_id: str
    title: str
    text: str
    skill: str = ""  # from a first line "skill: NAME" of the file; empty: fits any skill
    tag: str = ""  # math | science | code, or not told
    hint: str = ""  # of a pool's environment, whose source is the text
    family: str = ""  # of a procedural pool's environment
    level: int = -1  # the same: its difficulty within the family, the easiest lowest


class MemoryLine(Part, frozen=True, kw_only=True):
    """An earlier environment that the designer is shown: a seed ("best") or a negative ("easy", "hard", "repeated")."""

    env_id: str
    kind: str  # best | easy | hard | repeated
    skill: str
    source: str
    hint: str
    win_rate: float
    regret: float


class DesignSlot(Part, frozen=True, kw_only=True):
    """One environment to be written: one of the generation's n slots, at one design attempt."""

    slot: int
    design_attempt: int
    env_id: str
    skill: str
    document: Document
    group: str  # the designer's advantage group where it is the document (nano)
    memory: list[MemoryLine] = []
    sampling_seed: int = 0


class CollapseReaction(Part, frozen=True, kw_only=True):
    """Why a generation's requests were changed: its designs were becoming alike, as memory knew."""

    since: int  # the generation with whose closing it began
    window: list[int]  # the generations that were judged
    vendi: float  # Vendi score / n over these, n not above the first window's
    start_vendi: float  # over the first window
    repeats: float  # share of designs that repeat an earlier one, over these
    start_repeats: float
    blocked: dict[str, int] = {}  # first environment of each blocked cluster: designs of the window in it
    told: str = ""  # the same, and what was done, in words


class DesignRequested(Record, frozen=True, kw_only=True):
    """A unit of slots, sampled as one batch by one worker. Written by streams/design."""

    unit_id: str
    generation: int
    design_attempt: int
    policy_version: int
    settings: SamplingSettings
    hint_settings: SamplingSettings | None = None  # published: a second call writes the hint
    slots: list[DesignSlot]
    probes: dict[str, int] = {}  # first unit only: earlier environments that this generation plays again, by env_id: generation
    reaction: CollapseReaction | None = None  # of the collapse control; none: diversity is well, or the control is off


class EnvProposed(Record, frozen=True, kw_only=True):
    """A design as the model wrote it. Written by workers/design; the trainer reads the tokens from here."""

    env_id: str
    unit_id: str
    generation: int
    slot: int
    design_attempt: int
    skill: str
    document_id: str
    group: str
    prompt_tokens: bytes = b""  # int32
    completion_tokens: bytes = b""  # int32
    logprobs: bytes = b""  # float32, one for each completion token
    spans: list[Span] = []  # over the completion
    source: str = ""
    hint: str = ""
    parse_error: str = ""
    stop_reason: str = ""  # stop | length
    lost: str = ""  # infrastructure reason after the last try; then nothing else is filled
    external: str = ""  # the model and server that wrote it, where that is not the run's policy; then it is never trained


class RuleProof(Part, frozen=True, kw_only=True):
    """What one rule of the gate saw."""

    rule: str
    passed: bool
    evidence: str
    numbers: dict[str, float] = {}


class EnvValidated(Record, frozen=True, kw_only=True):
    """A design that the gate admitted. Written by workers/validate."""

    env_id: str
    generation: int
    slot: int
    design_attempt: int
    skill: str
    document_id: str
    group: str
    source: str  # the play text: `solution` cut out
    full_source: str
    hint: str
    proposal: Reference
    source_digest: str
    signature: list[Annotated[int, Meta(ge=0, lt=2**32)]]  # MinHash
    proof: list[RuleProof]
    witness_min_return: float
    witness_mean_return: float
    reward_min: float  # lowest reward that the gate saw
    gate_cpu_s: float = 0.0
    gate_wall_s: float = 0.0
    verdict_from: str = ""  # event of the equal design whose verdict this is; then the gate cost nothing
    versions: VersionSpan = VersionSpan()  # that wrote the design


class EnvRejected(Record, frozen=True, kw_only=True):
    """A design that the gate refused, or that was lost. Written by workers/validate."""

    env_id: str
    generation: int
    slot: int
    design_attempt: int
    skill: str
    document_id: str
    group: str
    source: str
    hint: str
    proposal: Reference
    rule: str  # a gate rule, "parse", or "lost"
    evidence: str
    proof: list[RuleProof] = []
    gate_cpu_s: float = 0.0
    gate_wall_s: float = 0.0
    verdict_from: str = ""  # event of the equal design whose verdict this is; then the gate cost nothing
    versions: VersionSpan = VersionSpan()  # that wrote the design


class Member(Part, frozen=True, kw_only=True):
    """An environment that a generation plays."""

    env_id: str
    slot: int
    design_attempt: int
    skill: str
    document_id: str
    group: str
    source: str  # play text
    hint: str
    proposal: Reference
    source_digest: str
    witness_min_return: float
    reward_min: float
    repeated: float = 0.0  # MinHash similarity to the nearest earlier design, 0 where there is none
    repeats: str = ""  # env_id of that design, where the similarity makes this one a repetition
    identical: bool = False  # identical code earlier in the same group
    versions: VersionSpan = VersionSpan()


class RejectedDesign(Part, frozen=True, kw_only=True):
    """A refused attempt, kept for training with reward 0 (mended)."""

    env_id: str
    slot: int
    design_attempt: int
    skill: str
    group: str
    rule: str
    proposal: Reference
    versions: VersionSpan = VersionSpan()


class MissingSlot(Part, frozen=True, kw_only=True):
    """A slot without an environment, and why."""

    slot: int
    env_id: str
    reason: str
    repeats: str = ""  # env_id of the design that a dropped near-duplicate repeats


class Probe(Part, frozen=True, kw_only=True):
    """An environment of an earlier generation that is played again, untrained, to know its present difficulty."""

    generation: int  # its own
    member: Member


class SlotsClosed(Record, frozen=True, kw_only=True):
    """A generation's slots are decided. Written by streams/design."""

    generation: int
    policy_version: int
    members: list[Member]  # in slot order
    duplicates: list[MissingSlot] = []
    missing: list[MissingSlot] = []
    rejected: list[RejectedDesign] = []
    proposed: int = 0
    rejected_by_rule: dict[str, int] = {}
    probes: list[Probe] = []  # played at the generation's first step
