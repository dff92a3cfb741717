"""Slots: the numbers that give each jail its own outside uid and its own cgroup, race-free between processes.

A slot is held by an exclusive lock on its file. The launcher gets a copy of the descriptor, so the slot stays taken until
host and launcher are both gone and nothing of the jail can be left. Who calls: the engine. May raise SandboxError.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.errors import SandboxError
from workers.sandbox import cgroup

COUNT: Final = 1024
# far above what systems hand out to people, services and containers
FIRST_UID: Final = 1_900_000_000


@dataclass
class Slot:
    """A taken slot. `uid` is the outside uid of its jail; `group` is None where the level has no cgroups."""

    number: int
    uid: int
    lock_fd: int
    group: cgroup.SlotCgroup | None

    def release(self) -> None:
        """Removes the cgroup and gives the slot back."""
        if self.group is not None:
            self.group.remove()
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1


class SlotTable:
    """Takes slots for one process. `state_dir` must be the same for all processes of a machine that share slots."""

    def __init__(self, state_dir: Path, first: int, hierarchy: cgroup.Hierarchy | None) -> None:
        self._folder = state_dir
        self._first = first
        self._hierarchy = hierarchy
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            raise SandboxError(f"the slots' folder {state_dir} can't be made: {error.strerror}", "Give another one") from error

    def take(self, memory_bytes: int, pids: int) -> Slot:
        """The first free slot, cleaned of what a killed process left, with its limits set. Raises SandboxError."""
        for offset in range(COUNT):
            number = (self._first + offset) % COUNT
            lock_fd = self._lock(number)
            if lock_fd < 0:
                continue
            uid = FIRST_UID + number if os.geteuid() == 0 else os.geteuid()
            group = cgroup.slot_cgroup(self._hierarchy, number) if self._hierarchy else None
            slot = Slot(number, uid, lock_fd, group)
            if group is not None:
                try:
                    group.kill()
                    group.create(memory_bytes, pids)
                except OSError as error:
                    slot.release()
                    raise SandboxError(f"the cgroup of slot {number} can't be made: {error}") from error
            return slot
        raise SandboxError(f"all {COUNT} slots in {self._folder} are taken", "End other runs on this machine")

    def sweep(self) -> int:
        """Ends and removes what killed processes left in slots that nobody holds. Gives how many."""
        if self._hierarchy is None:
            return 0
        swept = 0
        for number in cgroup.existing_slots(self._hierarchy):
            lock_fd = self._lock(number)
            if lock_fd < 0:
                continue
            cgroup.slot_cgroup(self._hierarchy, number).remove()
            os.close(lock_fd)
            swept += 1
        return swept

    def close(self) -> None:
        """Leaves no folder where no slot is left on the machine."""
        if self._hierarchy is not None:
            cgroup.remove_parent(self._hierarchy)

    def _lock(self, number: int) -> int:
        """A descriptor that holds the slot's lock, or -1."""
        try:
            descriptor = os.open(self._folder / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        os.close(descriptor)
        return -1
