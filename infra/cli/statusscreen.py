"""What `spade status` shows: one picture of a run, from the log, and from the store where one is named.

In: a broker, a run, and a store or none. Out: rich renderables. Each look blocks for some small requests; raises BrokerError,
StoreError. What a design wrote is text in every cell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra.cli.backlog import STATUS_TOPICS, Status, TopicLag, read_lags, take
from infra.cli.options import cell
from infra.clickhouse import Row, Store
from infra.kafka import ControlReader
from infra.plaintext import escape, escape_line
from infra.report.alarms import find_alarms
from infra.report.facts import GenerationFacts, RoleFacts, StepFacts
from infra.report.queries import lag_limits
from infra.report.standstill import StandStill, run_alarm, stage_alarm, still_limit_s
from schemas.errors import StoreError
from schemas.process import BrokerSettings
from schemas.score import GenerationClosed
from schemas.train import StepFinished

RATE_STEPS = 6  # newest steps that the pace is taken over
SHOWN_REJECTED = 6
LONGEST_EVIDENCE = 160
NO_STORE = "no store is named (--store): the last rejected designs are not shown"


@dataclass(frozen=True)
class Picture:
    """A run at one moment."""

    run_id: str
    status: Status
    lags: list[TopicLag]
    rates: dict[tuple[str, str], float]
    """Records acknowledged a second, by group and topic, since the look before."""
    alarms: list[str]
    rejected: list[Row] = field(default_factory=list)
    missing: str = ""
    """What can't be shown, and why."""
    at: float = 0.0


class Follower:
    """Looks at one run again and again; keeps its place in the log between looks."""

    def __init__(self, broker: BrokerSettings, run_id: str, store: Store | None) -> None:
        self._broker, self._run_id, self._store = broker, run_id, store
        self._status = Status()
        self._still = StandStill()
        self._before: tuple[float, dict[tuple[str, str], int]] | None = None
        self._reader = ControlReader(broker, STATUS_TOPICS, run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._reader.close()

    def look(self) -> Picture:
        """The run as it is now."""
        for _, _, _, record in self._reader.catch_up():
            take(self._status, record)
        lags = read_lags(self._broker, self._run_id)
        now, wall = time.monotonic(), time.time()
        rates = self._rates(lags, now)
        rejected, missing = self._rejected()
        return Picture(
            run_id=self._run_id,
            status=self._status,
            lags=lags,
            rates=rates,
            alarms=alarms_of(self._status) + self._standing(lags, now, wall),
            rejected=rejected,
            missing=missing,
            at=wall,
        )

    def _rates(self, lags: Sequence[TopicLag], now: float) -> dict[tuple[str, str], float]:
        positions = {(row.group, row.topic): row.committed for row in lags}
        before, self._before = self._before, (now, positions)
        if before is None or now <= before[0]:
            return {}
        return {key: max(place - before[1][key], 0) / (now - before[0]) for key, place in positions.items() if key in before[1]}

    def _standing(self, lags: Sequence[TopicLag], now: float, wall: float) -> list[str]:
        limit = still_limit_s([record.created_at for record in self._status.closed])
        alarms = [
            stage_alarm(
                short(row.group, self._run_id),
                row.topic,
                row.lag,
                self._still.note(row.group, row.topic, row.committed, now),
                limit,
            )
            for row in lags
        ]
        if not self._status.finished:
            alarms.append(run_alarm(self._status.last_at, wall, limit))
        return [alarm for alarm in alarms if alarm]

    def _rejected(self) -> tuple[list[Row], str]:
        from infra.dashboards.panels import ask, load_panels

        if self._store is None:
            return [], NO_STORE
        try:
            return ask(self._store, load_panels()["rejected"], {"run": self._run_id})[:SHOWN_REJECTED], ""
        except StoreError as problem:  # the log tells enough to go on
            return [], f"the last rejected designs are not shown: {problem}"


def alarms_of(status: Status) -> list[str]:
    """The alarms that the run's own records give."""
    recipe: dict[str, Any] = json.loads(status.recipe or "{}")
    return find_alarms([_generation(one) for one in status.closed], [_step(one) for one in status.steps], lag_limits(recipe))


def render(picture: Picture, trouble: str = "") -> RenderableType:
    """The whole screen. `trouble`: why it is not fresh."""
    parts: list[RenderableType] = [_head(picture)]
    if trouble:
        parts.append(Text(escape_line(f"not fresh: {trouble}"), style="bold red"))
    parts += [_alarms(picture), _stages(picture), _rejected_table(picture)]
    return Group(*parts)


def short(group: str, run_id: str) -> str:
    """A consumer group's name without what every group of the run has in common."""
    return group.removesuffix(f"-{run_id}").removeprefix("spade-")


def age(seconds: float) -> str:
    """A time span for people: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _head(picture: Picture) -> Panel:
    status = picture.status
    policy = f"policy {status.version}" if status.version >= 0 else "no policy yet"
    if status.policy_at and not status.finished:
        policy += f", {age(picture.at - status.policy_at)} old"
    pace = _pace(status.steps)
    step = f"step {status.step}" if status.step >= 0 else "no step yet"
    closed = f"generation {status.generation} closed" if status.generation >= 0 else "no generation closed yet"
    lines = [
        f"run {escape_line(picture.run_id)}: {escape(status.state, 300)}",
        f"{policy}; {step}{f', {pace:.1f} a minute' if pace else ''}; {closed}",
    ]
    if status.closed:
        last = status.closed[-1]
        lines.append(
            f"win {last.win_rate:.2f} without hint, {last.hint_win_rate:.2f} with; "
            f"regret {last.regret:+.2f} ± {last.regret_se:.2f}; Vendi/n {last.vendi:.2f}"
        )
    return Panel(Text("\n".join(lines)), title="spade status", title_align="left")


def _pace(steps: Sequence[StepFinished]) -> float:
    """Steps a minute over the newest ones, by the trainer's clock; 0 where there are too few."""
    newest = [one.created_at for one in steps[-RATE_STEPS:]]
    passed = newest[-1] - newest[0] if len(newest) > 1 else 0.0
    return 60 * (len(newest) - 1) / passed if passed > 0 else 0.0


def _alarms(picture: Picture) -> Panel:
    lines = [f"! {escape_line(alarm, 500)}" for alarm in picture.alarms]
    text = "\n".join(lines) or "None: staleness, effective sample size, diversity, regret and every stage's pace are in bounds."
    return Panel(Text(text, style="bold red" if lines else "green"), title="Alarms", title_align="left")


def _stages(picture: Picture) -> Table:
    table = Table(title="Stages: what each consumer group has acknowledged", title_justify="left", expand=True)
    table.add_column("group")
    table.add_column("topic")
    for name in ("records/s", "lag"):
        table.add_column(name, justify="right")
    table.add_column("furthest behind")
    for row in picture.lags:
        rate = picture.rates.get((row.group, row.topic))
        table.add_row(
            cell(short(row.group, picture.run_id)),
            cell(row.topic.removeprefix("spade-")),
            "-" if rate is None else f"{rate:.1f}",
            str(row.lag),
            cell(row.position.removeprefix("spade-")),
        )
    return table


def _rejected_table(picture: Picture) -> RenderableType:
    if picture.missing:
        return Text(escape_line(picture.missing, 500), style="dim")
    table = Table(title="Last rejected designs", title_justify="left", expand=True)
    for name in ("generation", "skill", "rule", "evidence", "environment"):
        table.add_column(name)
    for row in picture.rejected:
        table.add_row(
            str(row["generation"]),
            cell(str(row["skill"])),
            cell(str(row["rule"])),
            cell(str(row["evidence"])[:LONGEST_EVIDENCE]),
            cell(str(row["environment"])[:8]),
        )
    return table


def _generation(record: GenerationClosed) -> GenerationFacts:
    return GenerationFacts(
        generation=record.generation,
        proposed=record.proposed,
        valid=record.valid,
        rejected=record.rejected_by_rule,
        win_rate=record.win_rate,
        hint_win_rate=record.hint_win_rate,
        regret=record.regret,
        regret_se=record.regret_se,
        designer_reward=record.designer_reward,
        policy_version=-1,  # no alarm asks for it
        lost=record.lost,
        repeats=record.repeats,
        vendi=record.vendi,
    )


def _step(record: StepFinished) -> StepFacts:
    roles = {
        name: RoleFacts(samples=stats.samples, loss=stats.loss, ess=stats.ess, lag=stats.lag_max)
        for name, stats in record.roles.items()
        if stats.samples
    }
    return StepFacts(
        step=record.step, drain=record.drain, skipped=record.skipped, loss=record.loss, roles=roles, seconds=record.seconds
    )
