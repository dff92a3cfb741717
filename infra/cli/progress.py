"""What a run has done so far, from its run topics, as lines for a terminal.

In: control records in log order. Out: one line an event. Called by `spade run` and `spade demo`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Self

from infra.kafka import ControlReader
from schemas.common import Record
from schemas.design import SlotsClosed
from schemas.process import BrokerSettings
from schemas.run import RunEnding, RunFinished
from schemas.score import GenerationClosed
from schemas.topics import Topic
from schemas.train import PolicyPublished, StepFinished

FOLLOWED = (
    Topic.SLOTS_CLOSED,
    Topic.GENERATION_CLOSED,
    Topic.STEP_FINISHED,
    Topic.POLICY_PUBLISHED,
    Topic.RUN_ENDING,
    Topic.RUN_FINISHED,
)


@dataclass
class Progress:
    """Follows one run; `poll` blocks up to its argument."""

    broker: BrokerSettings
    run_id: str
    say: Callable[[str], None]
    finished: RunFinished | None = None
    last_version: int = -1
    trained: int = 0
    last_event: str = "the run's start"
    last_at: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.monotonic)

    @cached_property
    def _reader(self) -> ControlReader:
        return ControlReader(self.broker, FOLLOWED, self.run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reader's connection, where there is one."""
        if "_reader" in vars(self):
            self._reader.close()

    def pass_over(self) -> None:
        """Takes what stands in the log already, in one line: what a run that goes on did before."""
        past = sorted((entry[-1] for entry in self._reader.catch_up()), key=lambda record: record.created_at)
        lines = [line for record in past if (line := self._take(record))]
        if lines:
            done = f"{self.trained} of its steps are trained, policy {self.last_version} is the newest"
            self.say(f"run {self.run_id} goes on: {done}; the last event was: {lines[-1]}")

    def poll(self, timeout_s: float = 0.2) -> None:
        """Reads what is new and says it."""
        for _, _, _, record in self._reader.poll(timeout_s):
            line = self._take(record)
            if line:
                minutes, seconds = divmod(int(time.monotonic() - self.started_at), 60)
                self.say(f"{minutes:3d}:{seconds:02d}  {line}")

    def silent_s(self) -> float:
        """Seconds since the last record."""
        return time.monotonic() - self.last_at

    def _take(self, record: Record) -> str:
        line = self._line(record)
        self.last_at = time.monotonic()
        self.last_event = line or self.last_event
        return line

    def _line(self, record: Record) -> str:
        match record:
            case PolicyPublished():
                self.last_version = max(self.last_version, record.version)
                return "policy 0 published: the designers start" if record.version == 0 else ""
            case RunEnding():
                return f"no generation after {record.last_generation}: {record.cause}"
            case RunFinished():
                self.finished = record
                return (
                    f"run finished: {record.steps} steps and {record.drain_steps} drain steps, policy {record.final_version}, "
                    f"{record.agent_samples} plays and {record.designer_samples} designs trained"
                )
            case SlotsClosed() | GenerationClosed() | StepFinished():
                self.trained += isinstance(record, StepFinished)
                return describe(record)
            case _:
                return ""


def describe(record: SlotsClosed | GenerationClosed | StepFinished) -> str:
    """One line for people: what a stage has just finished."""
    match record:
        case SlotsClosed():
            return (
                f"generation {record.generation:<3d} designed: {len(record.members)} of {record.proposed} valid{_by_rule(record)}"
            )
        case GenerationClosed():
            return (
                f"generation {record.generation:<3d} closed:   win {record.win_rate:.2f} without hint, "
                f"{record.hint_win_rate:.2f} with, regret {record.regret:+.2f} ± {record.regret_se:.2f}, "
                f"designer reward {record.designer_reward:.2f}"
            )
        case _:
            return _step_line(record)


def _by_rule(record: SlotsClosed) -> str:
    rules = ", ".join(f"{rule} {count}" for rule, count in sorted(record.rejected_by_rule.items()))
    return f" (refused: {rules})" if rules else ""


def _step_line(record: StepFinished) -> str:
    what = "drain step" if record.drain else "step"
    if record.skipped:
        return f"{what} {record.step:<3d} no update ({record.skipped})"
    roles = ", ".join(
        f"{name} {stats.samples} samples (ESS {stats.ess:.2f}, lag {stats.lag_max})"
        for name, stats in sorted(record.roles.items())
        if stats.samples
    )
    return f"{what} {record.step:<3d} trained: loss {record.loss:+.4f}, {roles}; policy {record.step + 1} published"
