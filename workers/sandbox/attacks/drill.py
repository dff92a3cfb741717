"""Runs attacks in a real jail and looks at what they left.

In: a sandbox, attacks, canaries. Out: outcomes as text (base.Attack), and traces. Who calls: `spade doctor --attack`, the tests.
Each attack blocks for its limits at most.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from workers.sandbox import cgroup
from workers.sandbox.attacks.base import Attack
from workers.sandbox.attacks.canaries import Canaries
from workers.sandbox.base import EndReason, Limits, Sandbox, Session, SessionEnd
from workers.sandbox.probe import state_dir_default
from workers.sandbox.root import default_cache_dir

GONE_S: Final = 30.0
# a session that the machine ended is tried again, as everywhere
TRIES: Final = 4
INTERRUPTED: Final = (f"ends {EndReason.TIMEOUT}", f"ends {EndReason.DIED}")


@dataclass(frozen=True)
class Tried:
    """One attack's result: what came of it, whether its barrier held, and what else was wrong ("" where nothing was)."""

    attack: Attack
    outcome: str
    held: bool
    trouble: str


@dataclass(frozen=True)
class Traces:
    """What a sandbox could leave on its host: processes below this one, cgroups of free slots, jails' mounts, descriptors of the
    kinds that it opens (descriptors_of_jails)."""

    processes: frozenset[int]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    descriptors: Counter[str]

    @classmethod
    def now(cls) -> Self:
        """As the host is. Zombies count as processes."""
        groups = [f"slot-{number}" for number in _slots_with_cgroups() if _nobody_holds(number)]
        places = ("nsjail", str(default_cache_dir()), "spade-canary")  # others of this machine mount what they like
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if any(place in line for place in places)]
        return cls(frozenset(descendants(os.getpid())), frozenset(groups), frozenset(mounts), descriptors_of_jails())

    def left(self) -> list[str]:
        """What is there now and was not then, after GONE_S at the latest."""
        deadline = time.monotonic() + GONE_S
        while (found := self._compare()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _compare(self) -> list[str]:
        now = Traces.now()
        found = [f"process {pid}" for pid in sorted(now.processes - self.processes)]
        found += [f"cgroup {path}" for path in sorted(now.cgroups - self.cgroups)]
        found += [f"descriptor of {what}" for what in sorted((now.descriptors - self.descriptors).elements())]
        return found + [f"mount {line}" for line in sorted(now.mounts - self.mounts)]


def descriptors_of_jails() -> Counter[str]:
    """This process's open descriptors by what they are, those kinds alone that a sandbox opens: sockets of this machine, logs,
    holds of processes and of roots, locks of slots. Network clients that connect again, and files, are others'."""
    local = {line.split()[6] for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]}
    places = (str(state_dir_default()), str(default_cache_dir()))
    found: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(path.readlink())
            if target.startswith(("/memfd:jail-log", "anon_inode:[pidfd]", *places)):
                found[target] += 1
            elif target.startswith("socket:[") and target[8:-1] in local:
                found[f"a local {target}"] += 1
    return found


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, zombies too."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found - {pid}


def running(pids: set[int]) -> set[int]:
    """Those that still run: a zombie does not."""
    found = set()
    for pid in pids:
        with suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.add(pid)
    return found


def _slots_with_cgroups() -> set[int]:
    if os.geteuid() != 0:
        return set()  # an ordinary user's jails have none
    hierarchy = cgroup.find_hierarchy(Path("/proc/mounts").read_text())
    return cgroup.existing_slots(hierarchy) if hierarchy else set()


def _nobody_holds(slot: int) -> bool:
    """Whether a slot is free: those that other runs of this machine hold are theirs."""
    try:
        with (state_dir_default() / f"slot-{slot}.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def carry_out(
    sandbox: Sandbox, attack: Attack, canaries: Canaries, limits: Limits | None = None, expected: str | None = None
) -> str:
    """The attack's outcome; of the last try, where the machine ended the session. `expected`: its beginning, by default what the
    first barrier has to give. Anything but a typed end that comes out of a session is an outcome too: the host's fault."""
    expected = attack.expected(sandbox.level) if expected is None else expected
    for _ in range(TRIES):
        outcome = _carry_out(sandbox, attack, canaries, limits or attack.limits)
        if outcome.startswith(expected) or not outcome.startswith(INTERRUPTED):
            break
    return outcome


def _carry_out(sandbox: Sandbox, attack: Attack, canaries: Canaries, limits: Limits) -> str:
    source = canaries.fill(attack.program)
    bystander = sandbox.open(source, max_turns=25, limits=limits) if attack.bystander else None
    try:
        if bystander is not None:
            bystander.reset(1)
        try:
            with sandbox.open(source, max_turns=25, limits=limits) as session:
                session.reset(1)
                for _ in range(attack.steps):
                    outcome = f"says {session.step('go').observation}"
        except SessionEnd as end:
            outcome = f"ends {end.reason}: {end.evidence}"
        except Exception as error:  # noqa: BLE001 - the boundary to hostile code: whatever else it brings up is a finding
            outcome = f"raises {type(error).__name__}"
        return outcome + _bystander_is(bystander)
    finally:
        if bystander is not None:
            bystander.close()


def _bystander_is(session: Session | None) -> str:
    if session is None:
        return ""
    try:
        return "" if session.step("look").observation == "here" else ", bystander changed"
    except SessionEnd:
        return ", bystander lost"


class Drill:
    """A sandbox in the product's own configuration, at the strongest level, and canaries around it. `packages`: those that its
    jails' root holds. Raises SandboxError where no jail can be had."""

    def __init__(self, packages: Sequence[str] = ()) -> None:
        from workers.sandbox import open_sandbox

        self.canaries = Canaries()
        self._before = Traces.now()
        try:
            self.sandbox = open_sandbox("zygote", packages=packages)
        except BaseException:
            self.canaries.close()
            raise

    def carry_out(self, attack: Attack) -> Tried:
        """One attack and what came of it."""
        began = time.monotonic()
        outcome = carry_out(self.sandbox, attack, self.canaries)
        trouble = [f"reached {name}" for name in self.canaries.touched()]
        if self.canaries.word in outcome:
            trouble.append("read a canary")
        if ", bystander" in outcome:
            trouble.append("harmed another session")
        if time.monotonic() - began > TRIES * attack.deadline_s:
            trouble.append(f"took {time.monotonic() - began:.0f} s")
        return Tried(attack, outcome, attack.held(outcome, self.sandbox.level) and not trouble, "; ".join(trouble))

    def close(self) -> list[str]:
        """Ends the sandbox; what all attacks together have left on the host."""
        self.sandbox.close()
        left = self._before.left()
        self.canaries.close()
        return left
