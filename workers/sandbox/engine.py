"""The nsjail engine: sessions in three modes behind base.Sandbox.

pool: a fresh jail for each session, from a few kept ready. zygote: one jail for each source (and hash seed), a child for each
session; idle zygotes beyond `slots` are ended, least recently used first. fresh: as pool, but started when asked for. A witness
always has a jail of its own. All modes start jails and children in exactly the same way, so code can't tell them apart. In each
mode jails can be kept ready before their source is known (`ready`). One that was taken is replaced once the first request has its
answer, or its session has ended: beside the work, so that nobody waits for it; the CPU counts for whoever takes the new one.
Who calls: the gate, rollout workers, audits. Safe for a few threads.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from schemas.errors import SandboxError
from workers.sandbox.base import Limits, Session, SessionEnd
from workers.sandbox.jail import MAX_CHILDREN, MEMORY_FACTOR, PIDS, Jail, JailSetup
from workers.sandbox.session import EpisodeSession
from workers.sandbox.slots import Slot, SlotTable

Mode = Literal["pool", "zygote", "fresh"]
Key = tuple[str, int, int]
DEFAULT_LIMITS: Final = Limits()


class NsjailSandbox:
    """See base.Sandbox. Owns its launcher, its slots and all their jails until `close`."""

    def __init__(
        self, mode: Mode, level: str, setup: JailSetup, table: SlotTable, slots: int, ready: Mapping[int, int] | None = None
    ) -> None:
        self.level = level
        self._mode = mode
        self._setup = setup
        self._table = table
        self._keep = max(1, slots)
        self._lock = threading.RLock()
        self._zygotes: OrderedDict[Key, Jail] = OrderedDict()
        self._ready = dict(ready or {})
        if mode == "pool":
            self._ready[0] = max(self._keep, self._ready.get(0, 0))
        self._spares: dict[int, deque[Jail]] = {}
        self._free_slots: dict[int, list[Slot]] = {}
        self._memory_of: dict[int, int] = {}
        self._live: set[Jail] = set()
        self._spent_cpu_s = 0.0
        self._closed = False

    def open(self, source: str, *, max_turns: int, limits: Limits | None = None, hash_seed: int = 0) -> Session:
        """See base.Sandbox. Blocks until the child lives: 2 ms from a zygote, 30 ms where a jail has to start."""
        limits = limits or DEFAULT_LIMITS
        with self._lock:
            jail = self._zygote(source, hash_seed, limits) if self._mode == "zygote" else self._fresh(source, hash_seed, limits)
            jail.busy += 1
        try:
            return self._begin(jail, max_turns, limits)
        except BaseException as error:
            if jail.stopped or not isinstance(error, SessionEnd):
                self._drop(jail)
            raise

    def witness(self, source: str, seeds: Sequence[int]) -> list[list[str]]:
        """See base.Sandbox. `solution` gets its own object for each seed."""
        with self._lock:
            jail = self._fresh(source, 0, DEFAULT_LIMITS)
            jail.busy += 1
        try:
            with self._begin(jail, 25, DEFAULT_LIMITS) as session:
                return [session.solve(seed) for seed in seeds]
        finally:
            self._drop(jail)

    def cpu_s(self) -> float:
        """See base.Sandbox."""
        with self._lock:
            untaken = {jail for spares in self._spares.values() for jail in spares}
            return self._setup.launcher.cpu_s() + self._spent_cpu_s + sum(jail.cpu_s() for jail in self._live - untaken)

    def forget(self, source: str) -> None:
        """See base.Sandbox: ends the zygotes of the source that no session uses."""
        digest = _digest(source)
        with self._lock:
            for key in [key for key, jail in self._zygotes.items() if key[0] == digest and not jail.busy]:
                self._drop(self._zygotes[key])

    def fill(self) -> None:
        """Has the jails started that are to be kept ready and are not; they start up by themselves."""
        with self._lock:
            for hash_seed, count in self._ready.items():
                spares = self._spares.setdefault(hash_seed, deque())
                while len(spares) < count:
                    spares.append(self._start(hash_seed, DEFAULT_LIMITS))

    def close(self) -> None:
        """See base.Sandbox."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ready.clear()
            for jail in list(self._live):
                self._drop(jail)
            for free in self._free_slots.values():
                for slot in free:
                    slot.release()
            self._free_slots.clear()
            self._setup.launcher.close()
            if self._setup.held is not None:
                self._setup.held.release()
            self._table.close()

    # --- jails -----------------------------------------------------------------------------------------------------------

    def _zygote(self, source: str, hash_seed: int, limits: Limits) -> Jail:
        key = (_digest(source), hash_seed, limits.memory_bytes)
        jail = self._zygotes.get(key)
        if jail is not None and (jail.stopped or jail.busy >= MAX_CHILDREN):
            # a full one serves its sessions to their end, unlisted
            del self._zygotes[key]
            if jail.stopped:
                self._drop(jail)
            jail = None
        if jail is None:
            self._end_idle_zygotes()
            jail = self._fresh(source, hash_seed, limits)
            self._zygotes[key] = jail
        self._zygotes.move_to_end(key)
        return jail

    def _fresh(self, source: str, hash_seed: int, limits: Limits) -> Jail:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        spares = self._spares.get(hash_seed) if limits.memory_bytes == DEFAULT_LIMITS.memory_bytes else None
        jail = spares.popleft() if spares else self._start(hash_seed, limits)
        try:
            jail.load(source)
        except SessionEnd:
            self._drop(jail)
            self.fill()
            raise
        return jail

    def _begin(self, jail: Jail, max_turns: int, limits: Limits) -> EpisodeSession:
        """A session. The jail is no child of the thread that begins it: once it lives, it goes where the thread may go."""
        session = EpisodeSession(jail, max_turns, limits, self._after, self.fill)
        processors = os.sched_getaffinity(0)
        if processors != jail.processors:
            jail.keep_to(processors)
        return session

    def _start(self, hash_seed: int, limits: Limits) -> Jail:
        free = self._free_slots.get(limits.memory_bytes)
        slot = free.pop() if free else self._table.take(limits.memory_bytes * MEMORY_FACTOR, PIDS)
        self._memory_of[slot.number] = limits.memory_bytes
        try:
            jail = Jail(self._setup, slot, hash_seed)
        except BaseException:
            slot.release()
            raise
        self._live.add(jail)
        return jail

    def _end_idle_zygotes(self) -> None:
        """Keeps the number of zygotes below `slots` where enough of them are idle."""
        for key in list(self._zygotes):
            if len(self._zygotes) < self._keep:
                return
            if not self._zygotes[key].busy:
                self._drop(self._zygotes[key])

    def _after(self, session: EpisodeSession, misbehaved: bool) -> None:
        """A session has ended: a jail that misbehaved is never used again by another source; single-use jails end here."""
        jail = session.jail
        with self._lock:
            jail.busy -= 1
            listed = any(known is jail for known in self._zygotes.values())
            if jail.stopped or (not listed and not jail.busy):
                self._drop(jail)
            self.fill()

    def _drop(self, jail: Jail) -> None:
        """Ends a jail and keeps its slot for the next one."""
        with self._lock:
            if jail not in self._live:
                return
            self._live.discard(jail)
            for key in [key for key, known in self._zygotes.items() if known is jail]:
                del self._zygotes[key]
            jail.stop()
            self._spent_cpu_s += jail.cpu_s()
            jail.discard()
            self._free_slots.setdefault(self._memory_of[jail.slot.number], []).append(jail.slot)


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
