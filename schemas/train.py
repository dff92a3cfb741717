"""Train stage: batches by reference, finished steps, published policies, evaluations."""

from __future__ import annotations

from schemas.common import Part, Record, Reference, VersionSpan

AGENT = "agent"
DESIGNER = "designer"


class Sample(Part, frozen=True, kw_only=True):
    """One trajectory that a step trains, by reference; its tokens stay in the log."""

    reference: Reference
    sample_id: str  # play_id or env_id
    role: str  # AGENT | DESIGNER
    advantage: float
    policy_version: int  # the oldest that sampled it
    lag: int  # step - policy_version
    arm: str = ""
    versions: VersionSpan = VersionSpan()  # as its spans tell them; the trainer holds them against the record


class BatchReady(Record, frozen=True, kw_only=True):
    """Batch s is optimizer step s; the first record for s in log order counts. Written by streams/batch."""

    step: int
    generation: int  # of the agent samples; -1 in a drain batch
    designer_generation: int  # -1 where none is due
    samples: list[Sample]
    drain: bool = False  # designer samples only, after the last planned step
    lost: int = 0
    evicted: int = 0
    stale: int = 0  # samples that were dropped for age while this batch was filled, each asked for again (free schedule)
    asked_again: int = 0  # samples of this batch that had been


class RoleStats(Part, frozen=True, kw_only=True):
    """What one role's samples gave in a step."""

    samples: int = 0
    tokens: int = 0
    loss: float = 0.0
    ess: float = 1.0  # (sum c)^2 / (n sum c^2) over tokens
    lag_mean: float = 0.0
    lag_max: int = 0
    logratio_max: float = 0.0  # largest |logp_old - logp_sampled|
    correction_mean: float = 1.0
    entropy: float = 0.0  # mean -logp of sampled tokens


class StepFinished(Record, frozen=True, kw_only=True):
    """Step s is done and its checkpoint durable. Written by the trainer."""

    step: int
    drain: bool
    skipped: str = ""  # reason, where no update was made
    loss: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    roles: dict[str, RoleStats] = {}
    trained: list[str] = []  # sample ids
    seconds: dict[str, float] = {}  # by phase: fetch, forward, backward, step, checkpoint, publish, wait


class Canary(Part, frozen=True, kw_only=True):
    """A fixed token text and the trainer's log-probabilities for it, to hold a sampler against."""

    tokens: bytes  # int32
    logprobs: bytes  # float32, tokens - 1 of them
    tolerance: float = 1e-4


class PolicyPublished(Record, frozen=True, kw_only=True):
    """Weights after `version` steps, durable at `place`. Written by the trainer."""

    version: int
    digest: str
    place: str  # fsspec path of a Hugging Face folder
    canary: Canary
    weights_norm: float = 0.0


class EvalFinished(Record, frozen=True, kw_only=True):
    """A policy on a suite. Written by `spade eval` and the demo."""

    suite: str
    policy_version: int
    policy_digest: str
    items: int
    won: bytes  # one byte an item in the suite's fixed order, 1 where won
    win_rate: float
    by_family: dict[str, float] = {}
    sampling: str = "sampled"
    formed: bytes = b""  # one byte an item, 1 where every turn kept the setting's form
    returns: bytes = b""  # float32 an item, unterminated ones 0
