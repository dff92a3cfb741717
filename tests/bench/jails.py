"""The sandbox and the gate, measured against floors and peers in one interleaved run: every row of the targets' table.

In: how many rounds. Out: samples by name (seconds, but for memory in MiB), taken in turn, so that whatever else the machine does
falls on all of them alike. Who calls: table.py, and a test with tiny counts. Blocks for about ten seconds a round.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.bench import peers
from trainer.nano.families import FAMILIES
from trainer.nano.family import write_source
from workers.gate import JAILS_OF_A_JUDGEMENT, judge
from workers.sandbox import frames, open_sandbox
from workers.sandbox.engine import DEFAULT_LIMITS, NsjailSandbox
from workers.sandbox.jail import Jail

ENVIRONMENTS = Path(__file__).parents[1] / "environments"
LARGE = 5  # the largest of them
HINT = "Work in small steps and keep what you have found so far in mind."
STEPS = 20
READY_S = 0.3
PACKAGES = ("numpy", "gymnasium")
PLAIN = """
import random


class CountEnv:
    def __init__(self, max_turns=25):
        self.turn = 0

    def reset(self, seed=None):
        self.turn = 0
        return "Count. The number is " + str(random.Random(seed).randrange(100)), {}

    def step(self, action):
        while action == "for ever":
            pass
        self.turn += 1
        return "That was " + action + ", turn " + str(self.turn), 0.0, self.turn >= 250, False, {}
"""
HEAVY = PLAIN.replace("import random\n", "import random\n\nimport gymnasium\nimport numpy\n")


@dataclass(frozen=True)
class Counts:
    """How often: rounds; within a round starts, episodes a thread and mode, steps, kills; once: sessions in memory at a time."""

    rounds: int = 12
    starts: int = 3
    episodes: int = 6
    steps: int = 100
    kills: int = 4
    sessions: int = 64
    nano: int = 3
    large: int = 2


@dataclass
class JailBench:
    """Open sandboxes of each kind, the peers, and the samples so far."""

    counts: Counts
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.zygote = _open("zygote")
        self.fresh = _open("fresh")
        self.pool = _open("pool")
        self.heavy = _open("fresh", packages=PACKAGES)
        self.heavy_zygote = _open("zygote", packages=PACKAGES)
        self.gate = _open("zygote", ready=JAILS_OF_A_JUDGEMENT)
        self.echo, self.fork, self.work = peers.Peer(peers.ECHO), peers.Peer(peers.FORK), peers.Peer(peers.WORK)
        rng = Random(7)
        self.nano = [(write_source(family, rng, family.sizes[0]), rng.choice(family.hints)) for family in FAMILIES.values()]
        sources = sorted((path.read_text() for path in ENVIRONMENTS.glob("*.py")), key=len)
        self.large = [(source, HINT) for source in sources[-LARGE:]]
        self._judged = dict.fromkeys(("nano", "large"), 0)

    def close(self) -> None:
        """Ends everything."""
        for sandbox in (self.zygote, self.fresh, self.pool, self.heavy, self.heavy_zygote, self.gate):
            sandbox.close()
        self.echo.close()
        self.fork.close()
        self.work.close()

    def run(self, tell: Callable[[str], None]) -> None:
        """All rounds, then memory."""
        judge(self.gate, *self.nano[0])  # imports, and the first jails
        with self.zygote.open(PLAIN, max_turns=250) as session:
            session.reset(1)
        for number in range(self.counts.rounds):
            for measure in (
                self.starts,
                self.episode_starts,
                self.hand_outs,
                self.steps,
                self.kills,
                self.rates,
                self.judgements,
            ):
                measure()
            tell(f"round {number + 1} of {self.counts.rounds}")
        self.memory()

    def starts(self) -> None:
        """Jails from nothing to a zygote that answers, against the same interpreter and modules without a jail."""
        for _ in range(self.counts.starts):
            self.samples["python"].append(peers.start_python())
            self.samples["python cpu"].append(peers.python_cpu_s())
            self.samples["jail"].append(_start(self.fresh, ""))
        self.samples["packages"].append(peers.start_packages())
        self.samples["packages in a jail"].append(_start(self.heavy, HEAVY))

    def settle(self) -> None:
        """Waits until ready jails have started and the kernel is through with the namespaces of ended ones: what another measure
        began is not to run beside the next."""
        for sandbox in (self.pool, self.gate):
            for spare in [jail for spares in sandbox._spares.values() for jail in spares]:
                spare.status(0)
        time.sleep(READY_S)

    def episode_starts(self) -> None:
        """A child of a zygote that lives, against a plain fork."""
        self.settle()
        for number in range(self.counts.steps // 4):
            self.samples["fork"].append(self.fork.ask(b"x"))
            began = time.perf_counter()
            session = self.zygote.open(PLAIN, max_turns=250)
            self.samples["episode start"].append(time.perf_counter() - began)
            session.reset(number)
            session.close()

    def hand_outs(self) -> None:
        """A jail that stands ready, made and reset."""
        for number in range(self.counts.starts):
            with self.pool.open(PLAIN, max_turns=250) as session:  # fills the pool
                session.reset(number)
            self.settle()
            began = time.perf_counter()
            session = self.pool.open(PLAIN, max_turns=250)
            session.reset(number)
            self.samples["hand-out"].append(time.perf_counter() - began)
            session.close()

    def steps(self) -> None:
        """Steps, against an echo that is waited for with a timeout too."""
        with self.zygote.open(PLAIN, max_turns=250) as session:
            session.reset(1)
            self.settle()
            for number in range(self.counts.steps):
                self.samples["echo"].append(self.echo.ask(b"action %d" % number))
                began = time.perf_counter()
                session.step(f"action {number}")
                self.samples["step"].append(time.perf_counter() - began)

    def kills(self) -> None:
        """The end of a jail whose environment computes for ever."""
        for number in range(self.counts.kills):
            session = self.fresh.open(PLAIN, max_turns=250)
            session.reset(number)
            session._channel.send(frames.encode("step", 1, "for ever"), 1.0)  # type: ignore[attr-defined] # nobody waits for the reply
            time.sleep(0.01)
            jail: Jail = session.jail  # type: ignore[attr-defined] # the engine's own session
            began = time.perf_counter()
            self.fresh._drop(jail)
            self.samples["kill"].append(time.perf_counter() - began)
            session.close()

    def rates(self) -> None:
        """Episodes of STEPS steps a second, played by two threads, children of a zygote against fresh jails."""
        for name, sandbox in (("zygote", self.zygote), ("fresh jail", self.fresh)):
            began = time.perf_counter()
            threads = [threading.Thread(target=self._play, args=(sandbox,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.samples[f"episode, {name}"].append((time.perf_counter() - began) / (2 * self.counts.episodes))

    def _play(self, sandbox: NsjailSandbox) -> None:
        for number in range(self.counts.episodes):
            with sandbox.open(PLAIN, max_turns=250) as session:
                session.reset(number)
                for turn in range(STEPS):
                    session.step(str(turn))

    def judgements(self) -> None:
        """Whole judgements of good designs: CPU and wall time, with the jails' own whole lives. Nano designs also beside work
        that keeps memory and a processor in use, as trainer and samplers do in a run."""
        for name, designs, count in (("nano", self.nano, self.counts.nano), ("large", self.large, self.counts.large)):
            for _ in range(count):
                source, hint = designs[self._judged[name] % len(designs)]
                self._judged[name] += 1
                self._judge(name, source, hint)
                if name == "nano":
                    self.work.ask(b"b")
                    self._judge(f"{name} beside work", source, hint)
                    self.work.ask(b"e")

    def _judge(self, name: str, source: str, hint: str) -> None:
        self.gate.fill()
        time.sleep(READY_S)  # they stand ready: what their start has cost is spent, and is counted apart
        spares = [jail for spares in self.gate._spares.values() for jail in spares]
        started = sum(jail.cpu_s() for jail in spares)
        verdict = judge(self.gate, source, hint)
        assert verdict.admitted, f"{verdict.rule}: {verdict.evidence}"
        self.samples[f"{name} cpu"].append(verdict.cpu_s)
        self.samples[f"{name} warm cpu"].append(verdict.cpu_s - started)
        self.samples[f"{name} wall"].append(verdict.wall_s)

    def memory(self) -> None:
        """Memory of a session, MiB, while many are open: processes' proportional shares, a jail each and in one zygote."""
        for name, sandbox, source in (
            ("jails", self.fresh, PLAIN),
            ("zygote", self.zygote, PLAIN),
            ("heavy jails", self.heavy, HEAVY),
            ("heavy zygote", self.heavy_zygote, HEAVY),
        ):
            sessions = [sandbox.open(source, max_turns=250) for _ in range(self.counts.sessions)]
            for number, session in enumerate(sessions):
                session.reset(number)
            groups = [jail.slot.group for jail in sandbox._live if jail.slot.group is not None]
            shares = [_proportional_mib(pid) for group in groups for pid in group.processes()]
            self.samples[f"memory, {name}"].append(sum(shares) / len(sessions))
            for session in sessions:
                session.close()


def _open(mode: str, **options: object) -> NsjailSandbox:
    sandbox = open_sandbox(mode, required_level="full", **options)  # type: ignore[arg-type] # names of modes
    assert isinstance(sandbox, NsjailSandbox)
    return sandbox


def _start(sandbox: NsjailSandbox, source: str) -> float:
    """Seconds until a new jail's zygote has loaded a source and answers."""
    began = time.perf_counter()
    jail = sandbox._start(0, DEFAULT_LIMITS)
    jail.load(source)
    jail.status(0)
    took = time.perf_counter() - began
    sandbox._drop(jail)
    return took


def _proportional_mib(pid: int) -> float:
    """A process's share of memory: pages that n processes share count 1/n."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0
