"""A sandbox without a jail, for environments that the tests wrote themselves, with failures of the machine on demand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from workers.sandbox.base import EndReason, ErrorKind, Limits, SessionEnd, StepResult


class FakeSandbox:
    """See workers.sandbox.base.Sandbox. `failures`: (operation, number of its call) -> how the machine fails it."""

    level = "fake"

    def __init__(self, failures: dict[tuple[str, int], EndReason] | None = None) -> None:
        self.failures = failures or {}
        self.calls: Counter[str] = Counter()
        self.open_sessions = 0
        self.most_open = 0
        self.used_s = 0.0  # what cpu_s tells
        self.texts: list[str] = []  # everything that ever entered a session

    def open(self, source: str, *, max_turns: int, limits: Limits | None = None, hash_seed: int = 0) -> FakeSession:
        self.note("open", source)
        self.open_sessions += 1
        self.most_open = max(self.most_open, self.open_sessions)
        return FakeSession(self, source, max_turns)

    def witness(self, source: str, seeds: Sequence[int]) -> list[list[str]]:
        actions = []
        for seed in seeds:
            environment = make_environment(source, 25)
            environment.reset(seed)
            actions.append(environment.solution())
        return actions

    def forget(self, source: str) -> None:
        """Keeps nothing."""

    def cpu_s(self) -> float:
        return self.used_s

    def close(self) -> None:
        """Holds nothing."""

    def note(self, operation: str, text: str) -> None:
        self.texts.append(text)
        self.calls[operation] += 1
        reason = self.failures.get((operation, self.calls[operation]))
        if reason is not None:
            raise SessionEnd(reason, f"told to fail {operation}")


class FakeSession:
    def __init__(self, sandbox: FakeSandbox, source: str, max_turns: int) -> None:
        self.sandbox = sandbox
        self.environment = make_environment(source, max_turns)
        self.closed = False
        self.first_info_empty = True

    def reset(self, seed: int) -> str:
        self.sandbox.note("reset", str(seed))
        observation, info = self.environment.reset(seed)
        self.first_info_empty = not info
        return str(observation)

    def step(self, action: str) -> StepResult:
        self.sandbox.note("step", action)
        try:
            observation, reward, terminated, truncated, info = self.environment.step(action)
        except ArithmeticError as problem:
            raise SessionEnd(EndReason.ENV_ERROR, str(problem), ErrorKind.RAISED) from problem
        if not math.isfinite(reward):
            raise SessionEnd(EndReason.ENV_ERROR, "reward is not finite", ErrorKind.NONFINITE)
        return StepResult(observation, float(reward), terminated, truncated, not info)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.sandbox.open_sessions -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def make_environment(source: str, max_turns: int) -> Any:
    space: dict[str, Any] = {}
    exec(source, space)  # the tests' own sources only
    (name,) = [name for name in space if name.endswith("Env")]
    return space[name](max_turns)
