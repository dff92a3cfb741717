"""A run under a storm of blows: starts it as a person would, strikes its busy processes by plan, and takes it up again.

In: command lines to start and to resume the run, a plan, and how many records the undisturbed run had. Out: the blows that fell,
and the run's end. Called by `spade chaos`, in its main thread. Blocks until the run has ended or its deadline; raises
StormError where the run itself ends in an error, StageTimeoutError at the deadline. Whatever it stopped goes on when it ends.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.chaos.evidence import Evidence, LogFollower
from infra.chaos.openwork import OpenWork
from infra.chaos.plan import KILL, STALL, Blow, count_due
from infra.chaos.victims import BROKER, MEMORY, STALL_S, STORE, SUPERVISOR, find_victims, strike
from infra.local.processes import OwnedProcess, last_lines
from schemas.errors import BrokerError, StageTimeoutError, SupervisorError
from schemas.process import BrokerSettings
from schemas.settings import Recipe

PATIENCE_S = 20.0  # for a kind to be busy; then another that is busy takes its place. Shared by all blows that are due
ORPHANS_LIMIT_S = 20.0  # for the children of a killed supervisor to be gone
AGAIN_S = 60.0  # a kind whose answers are not in the log (broker, store, supervisor, memory) is struck again no sooner
UNSTORED_S = 0.4  # the memory sink holds rows back for half a second
SETTLED_LIMIT_S = 3.0
POLL_S = 0.1


class StormError(SupervisorError):
    """The run under the storm ended in an error of its own."""


@dataclass(frozen=True)
class Struck:
    """A blow that fell."""

    kind: str
    how: str
    at_s: float  # since the storm's start
    open_items: int  # what the process had open


@dataclass
class Storm:
    """One disturbed run. `broker` None: the run's own, found in its folder once it is up."""

    run_id: str
    recipe: Recipe
    run_dir: Path
    start: Sequence[str]
    resume: Sequence[str]
    environment: Mapping[str, str]
    plan: Sequence[Blow]
    calm_records: int
    say: Callable[[str], None]
    deadline_s: float
    seed: int
    broker: BrokerSettings | None = None
    struck: list[Struck] = field(default_factory=list)
    _follower: LogFollower | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)  # monotonic
    _stopped: list[tuple[float, OwnedProcess]] = field(default_factory=list)
    _answers: dict[str, int] = field(default_factory=dict)  # of a kind, when it was last struck
    _last: dict[str, float] = field(default_factory=dict)
    _heard: deque[float] = field(default_factory=lambda: deque(maxlen=64))  # when the newest records were read

    def run(self) -> float:
        """Runs to the end; its wall-clock seconds."""
        self._began = time.monotonic()
        self._known = Evidence(self.run_id)
        self._owns_broker = self.broker is None
        self._draw = random.Random(self.seed)
        self._work = OpenWork(self.recipe.schedule)
        self._log = self.run_dir.parent / "storm.log"
        self._supervisor = OwnedProcess.start(self.start, self._log, env=self.environment)
        try:
            self._follow_to_end()
        finally:
            for _, process in self._stopped:
                strike(process, signal.SIGCONT)
            self._supervisor.stop(60.0)
            if self._follower is not None:
                self._follower.close()
        return time.monotonic() - self._began

    def _follow_to_end(self) -> None:
        waiting = list(self.plan)
        since = 0.0  # when the first of `waiting` became due
        while self._still_runs():
            self._read()
            self._continue_stopped()
            records = sum(map(len, self._known.places.values()))
            due = count_due(waiting, records / self.calm_records)
            if due and self._known.finished is None:
                since = since or time.monotonic()
                if self._try(waiting, time.monotonic() - since > PATIENCE_S / due):
                    since = 0.0
            if time.monotonic() - self._began > self.deadline_s:
                raise StageTimeoutError(
                    f"the run under the storm has not ended within {self.deadline_s:.0f} s ({len(self.struck)} blows fell)",
                    f"Look at {self._log} and the logs in {self.run_dir / 'logs'}, or allow more --minutes",
                )

    def _still_runs(self) -> bool:
        if self._supervisor.alive():
            return True
        code = self._supervisor.exit_code
        if code != 0:
            raise StormError(
                f"the run under the storm ended with {code}: {last_lines(self._log, count=1)}",
                f"Look at {self._log} and the logs in {self.run_dir / 'logs'}",
            )
        return False

    def _read(self) -> None:
        """Takes what the log has; connects once the run's topics are there."""
        if self._follower is None:
            broker = self.broker or _own_broker(self.run_dir)
            with contextlib.suppress(BrokerError):
                if broker is not None:
                    self._follower = LogFollower(broker, self._known)
                    self.broker = broker
        if self._follower is None:
            time.sleep(POLL_S)
            return
        with contextlib.suppress(BrokerError):  # it may be the very thing that was struck
            for _, record in self._follower.poll(POLL_S):
                self._work.take(record)
                self._heard.append(time.monotonic())

    def _try(self, waiting: list[Blow], impatient: bool) -> bool:
        """Lets the first blow fall where its kind is busy; where it is not for long, that of a later one, then any that is."""
        due = waiting[0]
        kinds = [due.kind]
        if impatient:
            kinds += [blow.kind for blow in waiting[1:]]
            kinds += self._draw.sample(sorted(self._work.answers), len(self._work.answers))
        for place, kind in enumerate(kinds):
            if not self._busy(kind):
                continue
            time.sleep(due.delay_s)
            self._read()
            if self._busy(kind):
                if not self._fall(kind, due.how if kind in STALL_S else KILL):
                    return False
                if 0 < place < len(waiting):  # the two change places: each kind has its blow
                    waiting[place] = replace(waiting[place], kind=due.kind)
                waiting.pop(0)
                return True
        return False

    def _busy(self, kind: str) -> int:
        """How much the kind has open; 0 also where it has answered nothing since it was last struck."""
        if kind in (MEMORY, STORE, BROKER, SUPERVISOR):
            rested = time.monotonic() - self._last.get(kind, -AGAIN_S) >= AGAIN_S
            if not rested or not self._work.any_open():
                return 0
            return self._unstored() if kind in (MEMORY, STORE) else 1
        fresh = self._work.answers[kind] > self._answers.get(kind, 0)
        return len(self._work.open(kind)) if fresh else 0

    def _unstored(self) -> int:
        """Records that are younger than the memory sink lets a row wait for company, so that it can't have stored them."""
        horizon = time.monotonic() - UNSTORED_S
        return sum(1 for at in self._heard if at > horizon)

    def _busy_by_the_whole_log(self, kind: str) -> int:
        """As `_busy`, once nothing more is to be read of the past."""
        end, known = time.monotonic() + SETTLED_LIMIT_S, -1
        while time.monotonic() < end and self._follower is not None and self._follower.records != known:
            known = self._follower.records
            self._read()
        return self._busy(kind)

    def _fall(self, kind: str, how: str) -> bool:
        victims = find_victims(kind, self._supervisor, self.run_dir)
        if not victims:
            return False
        victim = victims[self._draw.randrange(len(victims))]
        items = self._busy(kind)
        if kind in STALL_S:  # stopped first, so that it can't answer between our look and the blow
            if not strike(victim, signal.SIGSTOP):
                return False
            items = self._busy_by_the_whole_log(kind)
            if not items:
                strike(victim, signal.SIGCONT)
                return False
        if how != STALL and not strike(victim, signal.SIGKILL):
            return False
        now = time.monotonic()
        if how == STALL:
            self._stopped.append((now + STALL_S[kind], victim))
        self.struck.append(Struck(kind, how, now - self._began, items))
        self._answers[kind], self._last[kind] = self._work.answers[kind], now
        self.say(f"{now - self._began:6.1f} s  {how:<7s} {kind} (process {victim.pid}, {items} open)")
        if kind == SUPERVISOR:
            self._take_up()
        return True

    def _take_up(self) -> None:
        """After the supervisor's death: its children die with it; then the run is resumed."""
        self._supervisor.wait(ORPHANS_LIMIT_S)
        if self._owns_broker and self._follower is not None:  # it comes back at another address
            self._follower.close()
            self._follower = self.broker = None
        end = time.monotonic() + ORPHANS_LIMIT_S
        while any(find_victims(kind, self._supervisor, self.run_dir) for kind in (BROKER, STORE)) and time.monotonic() < end:
            time.sleep(POLL_S)
        self._supervisor = OwnedProcess.start(self.resume, self._log, env=self.environment)

    def _continue_stopped(self) -> None:
        now = time.monotonic()
        for due, process in self._stopped:
            if now >= due:
                strike(process, signal.SIGCONT)
        self._stopped = [(due, process) for due, process in self._stopped if now < due]


def count_blows(struck: Sequence[Struck]) -> Counter[tuple[str, str]]:
    """Blows by kind and how."""
    return Counter((one.kind, one.how) for one in struck)


def _own_broker(run_dir: Path) -> BrokerSettings | None:
    from infra.local.broker import LocalBroker

    local = LocalBroker.attach(run_dir / BROKER)
    return None if local is None else BrokerSettings(address=local.address, claims=str((run_dir / "claims").resolve()))
