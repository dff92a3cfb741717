"""Jailed sessions for environments that a language model wrote. `open_sandbox` is the way in; base.py holds the types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from schemas.errors import SandboxError
from workers.sandbox.base import (
    EndReason,
    ErrorKind,
    Limits,
    Sandbox,
    Session,
    SessionEnd,
    StepResult,
    is_infrastructure,
)
from workers.sandbox.probe import LEVELS, SandboxReport, build_sandbox, probe
from workers.sandbox.root import build_root

__all__ = [
    "LEVELS",
    "EndReason",
    "ErrorKind",
    "Limits",
    "Sandbox",
    "SandboxReport",
    "Session",
    "SessionEnd",
    "StepResult",
    "build_root",
    "is_infrastructure",
    "open_sandbox",
    "probe",
]


def open_sandbox(
    mode: Literal["pool", "zygote", "fresh"],
    *,
    required_level: str = "any",
    slots: int = 2,
    slot_base: int = 0,
    state_dir: Path | None = None,
    ready: Mapping[int, int] | None = None,
    packages: Sequence[str] = (),
) -> Sandbox:
    """A sandbox at the strongest level that this machine reaches.

    `slots`: how many idle zygotes (or ready jails) are kept; busy ones are never refused a jail. `slot_base`: where the
    search for free slots starts. `state_dir`: folder of the slots' locks for an ordinary user (run by root they are the
    machine's, for uids and cgroups are). `ready`: by hash seed, how many started jails are kept for sources to come, in any mode
    (from the first source on: a sandbox that is never used starts none). `packages`: those of root.PACKAGES that lie in the
    jails' root. Blocks about 50 ms, some seconds where the root has to be built. Raises SandboxError where `required_level`
    ("any", "rootless", "full") is not reached: nothing runs at a weaker level than asked, or without a jail.
    """
    if required_level not in ("any", *LEVELS):
        raise SandboxError(f"sandbox level {required_level!r} is unknown", f"Use one of: any, {', '.join(reversed(LEVELS))}")
    sandbox, why, _ = build_sandbox(mode, slots, slot_base, state_dir, ready, packages)
    if required_level != "any" and LEVELS.index(sandbox.level) > LEVELS.index(required_level):
        sandbox.close()
        raise SandboxError(
            f"this machine reaches sandbox level {sandbox.level}, {required_level} is required: {why}",
            "Run `spade doctor` for the way to a stronger level, or require less",
        )
    return sandbox
