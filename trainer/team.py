"""Several processes as one trainer: rank 0 follows the log and publishes, the others do their part of each step.

In: TrainSettings.processes. Out: an engine that looks like one process's. Called by trainer/loop. Rank 0 starts the others, tells
them what to do (trainer/orders) and watches them: one that ends, or does not answer within `rank_deadline_s`, ends the trainer
with the cause, and a new one goes on from the newest checkpoint. They meet at a port of the loopback interface that rank 0 opens.
Nobody is authenticated there: whoever may open sockets of this machine could join in place of a rank that is still starting.
On GPUs each rank takes the one of its number (not run: written for it, tested on CPUs).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, but missing in torch's __all__

from infra.local.processes import OwnedProcess, describe_end
from infra.supervisor import last_error
from infra.telemetry import get_logger
from schemas.common import SamplingSettings
from schemas.errors import TrainingError
from schemas.settings import TrainSettings
from trainer import orders
from trainer.engine import StepOutcome, TrainEngine
from trainer.orders import Order, Orders
from trainer.packing import Trajectory
from trainer.shards import FromLead, outline
from trainer.zero import tell_deepspeed

HOST = "127.0.0.1"
START_S = 300.0  # until every process has loaded its libraries and joined
END_S = 10.0
NOTICE_S = 60.0  # at most, from a broken connection until the kernel tells who ended
NewEngine = Callable[[Path, TrainSettings, int, Path], TrainEngine]
_log = get_logger(__name__)


@dataclass(frozen=True)
class Member:
    """A further process of the trainer."""

    process: OwnedProcess
    log: Path
    began: int  # where its part of the log begins


class Team:
    """The other processes of this trainer, from their start to their end. One a process of the operating system."""

    def __init__(self, settings: TrainSettings, log_dir: Path) -> None:
        self.settings = settings
        log_dir.mkdir(parents=True, exist_ok=True)
        self._members: dict[int, Member] = {}
        listening = socket.create_server((HOST, 0))
        port = listening.getsockname()[1]
        store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
        try:
            self._start(port, log_dir)
            self._await_members(store)
            self.line = self._join(port, store)
        except BaseException:
            self.end(politely=False)
            raise
        _log.info("trainer processes joined", processes=settings.processes)

    def _start(self, port: int, log_dir: Path) -> None:
        world = self.settings.processes
        for rank in range(1, world):
            log = log_dir / f"train-rank-{rank}.log"
            argv = [sys.executable, "-P", "-m", "trainer.follower", *map(str, (rank, world, port, self.settings.rank_deadline_s))]
            began = log.stat().st_size if log.exists() else 0
            self._members[rank] = Member(OwnedProcess.start(argv, log, env=os.environ), log, began)

    def _await_members(self, store: TCPStore) -> None:
        """Waits until each has said that it is about to join. Raises TrainingError naming one that did not."""
        end = time.monotonic() + START_S
        waiting = set(self._members)
        while waiting:
            waiting = {rank for rank in waiting if not store.check([f"here-{rank}"])}
            self.check()
            if waiting and time.monotonic() >= end:
                late = min(waiting)
                raise TrainingError(
                    f"trainer rank {late} did not start within {START_S:.0f} s", f"Its log is {self._members[late].log}"
                )
            time.sleep(0.05)

    def _join(self, port: int, store: TCPStore) -> Orders:
        try:
            return join(0, self.settings.processes, port, self.settings.rank_deadline_s, store)
        except RuntimeError as problem:  # all that torch raises where the group does not come together
            self.check()
            first = str(problem).splitlines()[0]
            raise TrainingError(
                f"a process of the trainer did not join ({first})", "See their logs, and start again"
            ) from problem

    def check(self) -> None:
        """Raises TrainingError where a member has ended: of several a killed one, for others end by its silence."""
        ended = [(rank, member) for rank, member in self._members.items() if not member.process.alive()]
        for rank, member in sorted(ended, key=lambda pair: (pair[1].process.exit_code or 0) >= 0):
            told = last_error(member.log, member.began)
            raise TrainingError(
                f"trainer rank {rank} {describe_end(member.process.exit_code)}" + (f": {told}" if told else ""),
                f"Its log is {member.log}",
            )

    @contextlib.contextmanager
    def together(self, order: Order) -> Iterator[None]:
        """Has the others do `order` while this process does its own part inside; their failure becomes TrainingError."""
        self.check()
        try:
            self.line.give(order)
            yield
        except RuntimeError as problem:  # all that torch raises where a collective fails
            late = "Timed out" in str(problem)
            broken = isinstance(problem, distributed.DistError) or "gloo" in str(problem)
            end = time.monotonic() + (NOTICE_S if broken and not late else 0.0)
            self.check()
            while time.monotonic() < end:
                time.sleep(0.05)
                self.check()
            if not (broken or late):
                raise
            first = str(problem).splitlines()[0]
            raise TrainingError(
                f"a process of the trainer did not answer within {self.settings.rank_deadline_s:.0f} s ({first})",
                "Look at the machine's load; train.rank_deadline_s is the limit",
            ) from problem

    def engine(self, folder: Path, settings: TrainSettings, seed: int, reference: Path) -> LeadingEngine:
        """An engine over all processes, in place of the one before."""
        with self.together(orders.Open(str(folder), settings.model_dump_json(), seed, str(reference))):
            return LeadingEngine(self, folder, settings, seed, reference)

    def end(self, politely: bool = True) -> None:
        """Ends the members: by an order, else by force after END_S."""
        if politely:
            with contextlib.suppress(TrainingError, RuntimeError):
                self.line.give(orders.End())
        limit = time.monotonic() + (END_S if politely else 0.0)
        for member in self._members.values():
            if not member.process.wait(max(0.0, limit - time.monotonic())):
                member.process.kill()
        self._members = {}
        if distributed.is_initialized():
            distributed.destroy_process_group()


class LeadingEngine(TrainEngine):
    """Rank 0's engine: whatever it is asked, the others do too."""

    def __init__(self, team: Team, folder: Path, settings: TrainSettings, seed: int, reference: Path) -> None:
        self._team = team
        super().__init__(folder, settings, seed, reference)

    def train(
        self, trajectories: Sequence[Trajectory], table: Sequence[SamplingSettings], between: Callable[[], None] = lambda: None
    ) -> StepOutcome:
        """As one process's; also raises TrainingError where another process fails."""
        with self._team.together(orders.Train(orders.on_wire(trajectories), list(table))):
            return super().train(trajectories, table, between)

    def canary(self, tokens: Sequence[int]) -> list[float]:
        """As one process's."""
        with self._team.together(orders.Canary(list(tokens))):
            return super().canary(tokens)

    def weights(self) -> dict[str, torch.Tensor]:
        """As one process's."""
        with self._team.together(orders.Weights()):
            return super().weights()

    def state(self) -> dict[str, torch.Tensor]:
        """As one process's."""
        with self._team.together(orders.State()):
            return super().state()

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """As one process's; each tensor goes to the others as it is needed."""
        with self._team.together(orders.Load(outline(state))):
            super().load_state(FromLead(state))

    def check(self) -> None:
        """Raises TrainingError where another process has ended."""
        self._team.check()


def join(rank: int, world: int, port: int, deadline_s: float, store: TCPStore | None = None) -> Orders:
    """Joins the group of `world` processes; the line on which orders come. Blocks until all have joined, up to START_S."""
    # DeepSpeed calls collectives by names that this torch renames later; a follower's last line is to be its error.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed.*")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    tell_deepspeed(rank, world)
    if store is None:
        store = TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=START_S))
        store.set(f"here-{rank}", "")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    distributed.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=min(deadline_s, START_S)),
    )
    distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=deadline_s))  # from here on the limit of each order
    return Orders(store)


@contextlib.contextmanager
def open_team(settings: TrainSettings, log_dir: Path) -> Iterator[NewEngine]:
    """What makes an engine of (folder, settings, seed, reference): one process's, or one over the team that lives inside this."""
    if settings.processes == 1:
        yield TrainEngine
        return
    team = Team(settings, log_dir)
    try:
        yield team.engine
    except BaseException:
        team.end(politely=False)
        raise
    team.end()
