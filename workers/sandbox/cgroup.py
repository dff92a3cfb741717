"""Host-owned cgroups, one per slot, for version 1 and version 2.

In: a slot's number and limits. Out: files to write a process id to before it executes, and counters that stay readable after
a jail's death (which is how out-of-memory, CPU and time limits are told apart). Who calls: slots.py, jail.py, the probe.
Never blocks for more than the deadline of `remove`.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PARENT: Final = "spade"
CONTROLLERS_V1: Final = ("memory", "pids", "cpuacct")
REMOVE_S: Final = 3.0
MAKE_TRIES: Final = 5


@dataclass(frozen=True)
class Hierarchy:
    """Where this machine's controllers are mounted: version, and a folder per controller (version 2: one, under `""`)."""

    version: int
    mounts: dict[str, Path]


@dataclass(frozen=True)
class SlotCgroup:
    """The folders of one slot. All methods are safe to repeat."""

    version: int
    folders: dict[str, Path]

    def procs_files(self) -> list[str]:
        """Files to write a process id (or 0 for the writer) to."""
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    def create(self, memory_bytes: int, pids: int) -> None:
        """Makes the folders and sets the limits. Raises OSError."""
        for folder in self.folders.values():
            self._make(folder)
        if self.version == 1:
            memory = self.folders["memory"]
            swap = memory / "memory.memsw.limit_in_bytes"
            with suppress(OSError):
                (memory / "memory.swappiness").write_text("0")
            _raise_limits(memory / "memory.limit_in_bytes", swap, memory_bytes)
            (self.folders["pids"] / "pids.max").write_text(str(pids))
            return
        folder = self.folders[""]
        (folder / "memory.max").write_text(str(memory_bytes))
        with suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
        (folder / "pids.max").write_text(str(pids))

    def _make(self, folder: Path) -> None:
        """Makes a slot's folder, and its parent where another process took that away meanwhile."""
        for _ in range(MAKE_TRIES):
            with suppress(FileNotFoundError):
                folder.mkdir(exist_ok=True)
                return
            folder.parent.mkdir(exist_ok=True)
            if self.version == 2:
                (folder.parent / "cgroup.subtree_control").write_text("+memory +pids")
        raise FileNotFoundError(f"{folder} can't be made")

    def oom_kills(self) -> int:
        """Processes that the memory limit has killed since the folder was made."""
        name = ("memory", "memory.oom_control") if self.version == 1 else ("", "memory.events")
        return _field(self.folders[name[0]] / name[1], "oom_kill")

    def cpu_s(self) -> float:
        """CPU seconds used since the folder was made."""
        if self.version == 1:
            return _number(self.folders["cpuacct"] / "cpuacct.usage") / 1e9
        return _field(self.folders[""] / "cpu.stat", "usage_usec") / 1e6

    def processes(self) -> set[int]:
        """Ids of the processes in the slot, in the reader's pid namespace."""
        found: set[int] = set()
        for name in self.procs_files():
            with suppress(OSError):
                found.update(int(line) for line in Path(name).read_text().split())
        return found - {0}

    def kill(self) -> None:
        """Kills whatever is in the slot and waits until it is gone, up to REMOVE_S seconds."""
        deadline = time.monotonic() + REMOVE_S
        while (found := self.processes()) and time.monotonic() < deadline:
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def remove(self) -> None:
        """Kills what is in the slot and removes its folders."""
        self.kill()
        deadline = time.monotonic() + REMOVE_S
        for folder in self.folders.values():
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.002)


def find_hierarchy(mounts_text: str) -> Hierarchy | None:
    """Reads /proc/mounts text; version 1 where memory, pids and cpuacct are mounted, else version 2 with both controllers."""
    found: dict[str, Path] = {}
    unified: Path | None = None
    for line in mounts_text.splitlines():
        _, place, kind, options, *_ = line.split(" ")
        if kind == "cgroup":
            found.update({name: Path(place) for name in CONTROLLERS_V1 if name in options.split(",")})
        elif kind == "cgroup2" and unified is None:
            unified = Path(place)
    if len(found) == len(CONTROLLERS_V1):
        return Hierarchy(1, found)
    if unified is not None:
        with suppress(OSError):
            if {"memory", "pids"} <= set((unified / "cgroup.controllers").read_text().split()):
                return Hierarchy(2, {"": unified})
    return None


def prepare_parent(hierarchy: Hierarchy) -> str:
    """Makes the folder that holds all slots. Gives "" or why it can't."""
    try:
        for folder in hierarchy.mounts.values():
            (folder / PARENT).mkdir(exist_ok=True)
        if hierarchy.version == 2:
            for folder in (hierarchy.mounts[""], hierarchy.mounts[""] / PARENT):
                (folder / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError as error:
        return f"cgroups can't be made: {error}"
    return ""


def remove_parent(hierarchy: Hierarchy) -> None:
    """Takes away the folder that held all slots, where nobody has one in it any more."""
    for folder in hierarchy.mounts.values():
        with suppress(OSError):
            (folder / PARENT).rmdir()


def slot_cgroup(hierarchy: Hierarchy, slot: int) -> SlotCgroup:
    """The cgroup of a slot; nothing is made yet."""
    return SlotCgroup(hierarchy.version, {name: folder / PARENT / f"slot-{slot}" for name, folder in hierarchy.mounts.items()})


def existing_slots(hierarchy: Hierarchy) -> set[int]:
    """Numbers of the slots that have a folder."""
    names = [path.name for folder in hierarchy.mounts.values() for path in (folder / PARENT).glob("slot-*")]
    return {int(name.removeprefix("slot-")) for name in names if name.removeprefix("slot-").isdigit()}


def _raise_limits(memory: Path, with_swap: Path, limit: int) -> None:
    """Sets memory, and memory with swap, which may never be the smaller: the order depends on what stands there."""
    for _ in range(2):
        for path in (memory, with_swap):
            with suppress(OSError):
                path.write_text(str(limit))
    if _number(memory) > limit:
        raise OSError(f"{memory} can't be set")


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _field(path: Path, key: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.split(" ")[0] == key:
                return int(line.split(" ")[1])
    return 0
