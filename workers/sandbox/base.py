"""The sandbox's seam: sessions, limits, results and ends, as every user of untrusted code sees them.

In: the source text of an environment, seeds and actions. Out: claims of that source, bounded and typed (the environment and
the runner share a process, so an observation or a reward is only ever what the environment's author says). Who calls: the
gate, the rollout workers, audits. The nsjail engine stands behind it; gVisor or a microVM could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self


class EndReason(StrEnum):
    """Why a session ended before its user closed it."""

    OOM = "oom"
    CPU = "cpu"
    SECCOMP = "seccomp"
    PROTOCOL = "protocol"
    ENV_ERROR = "env_error"
    BUDGET = "budget"
    TIMEOUT = "timeout"
    DIED = "died"


INFRASTRUCTURE = frozenset({EndReason.TIMEOUT, EndReason.DIED})


def is_infrastructure(reason: EndReason) -> bool:
    """True where the machine ended the session (try again, never score); False where the environment did (data)."""
    return reason in INFRASTRUCTURE


class ErrorKind(StrEnum):
    """What an `env_error` was; empty for every other reason."""

    NONE = ""
    RAISED = "raised"
    TYPES = "types"
    NONFINITE = "nonfinite"
    EXITED = "exited"


class SessionEnd(Exception):  # noqa: N818 - an end is data as often as an error
    """A session is over. `evidence` is a short text with everything unprintable escaped; `kind` tells env_errors apart."""

    def __init__(self, reason: EndReason, evidence: str, kind: ErrorKind = ErrorKind.NONE) -> None:
        super().__init__(f"{reason}: {evidence}")
        self.reason = reason
        self.evidence = evidence
        self.kind = kind


@dataclass(frozen=True)
class Limits:
    """What one session may use. Times in seconds, sizes in bytes.

    `make_s`, `reset_s` and `step_s` bound one call each: as much CPU time (which ends as `cpu`), and as much wall time where
    the environment sleeps when that is over (which ends as `budget`: there is nothing to wait for). One that computes, or waits
    for a processor of a busy machine, gets `patience` times the wall time before that ends as `timeout`.
    """

    memory_bytes: int = 256 * 1024 * 1024
    cpu_s: int = 10
    make_s: float = 2.0
    reset_s: float = 1.0
    step_s: float = 1.0
    steps: int = 256
    max_frame_bytes: int = 64 * 1024
    patience: float = 60.0
    start_s: float = 20.0


@dataclass(frozen=True)
class StepResult:
    """One reply to an action. `reward` is finite; `info_empty` is false where info held anything."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info_empty: bool


class Session(Protocol):
    """One episode's jailed environment object. Not for several threads at once.

    Every method but `close` blocks at most its limit and raises SessionEnd; after that every call raises the same end again.
    `first_info_empty`: whether the last reset's info held nothing (the gate refuses one that does).
    """

    first_info_empty: bool

    def reset(self, seed: int) -> str:
        """Begins an episode; gives the first observation. `seed` is in [0, 2**63)."""
        ...

    def step(self, action: str) -> StepResult:
        """Plays one action, which is text without surrogates."""
        ...

    def close(self) -> None:
        """Ends the session and everything that belongs to it. Never raises, may be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...


class Sandbox(Protocol):
    """Where sessions come from. Safe for a few threads."""

    level: str

    def open(self, source: str, *, max_turns: int, limits: Limits | None = None, hash_seed: int = 0) -> Session:
        """A session of `source` (play text). Raises SessionEnd where the jail can't be had (infrastructure)."""
        ...

    def witness(self, source: str, seeds: Sequence[int]) -> list[list[str]]:
        """For each seed: a new object, reset, `solution()`; the actions. The whole file runs in a jail of its own, which ends
        with the call. Raises SessionEnd."""
        ...

    def forget(self, source: str) -> None:
        """Lets go of what is kept for the sessions of a source: its user knows that no more will come. Never raises."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds of all jails that this sandbox ever ran, as far as the level lets one see."""
        ...

    def close(self) -> None:
        """Ends all jails and removes what they left. Never raises, may be called twice."""
        ...
