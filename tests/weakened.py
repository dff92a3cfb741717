"""Sandboxes with barriers taken away, to show what each barrier holds. For tests alone: nothing of the product leads here.

In: barriers and canaries. Out: a sandbox that is the product's but for them. A jail's own barriers go by other policy files and
another root; the launcher's by another program; the host's by attributes that are replaced while an attack runs.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from workers.sandbox import frames, jail, launch, root, rootcache, session
from workers.sandbox.attacks.base import Barrier, Layer
from workers.sandbox.attacks.canaries import VARIABLE, Canaries
from workers.sandbox.base import Limits, Sandbox
from workers.sandbox.engine import NsjailSandbox
from workers.sandbox.probe import build_sandbox
from workers.sandbox.runner import runner_source
from workers.sandbox.slots import Slot, SlotTable

OPEN_POLICY = "POLICY open { ALLOW { read } } USE open DEFAULT ALLOW"
STRICT = frames.decode
EXECUTE = 'os.execve(request["argv"][0], request["argv"], {})'


@dataclass(frozen=True)
class Removal:
    """How one barrier goes. `config`, `runner`, `launcher`: a text that stands there once, and what stands there instead."""

    config: tuple[tuple[str, str], ...] = ()
    runner: tuple[tuple[str, str], ...] = ()
    launcher: tuple[tuple[str, str], ...] = ()
    open_policy: bool = False
    root: Callable[[Path, Canaries], None] | None = None
    flags: tuple[str, ...] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    memory_factor: int = 1
    pids: int = 0
    host: tuple[tuple[Any, str, Any], ...] = ()


def show_the_host(folder: Path, canaries: Canaries) -> None:
    """Puts files of the host, and places where one may write, into a root."""
    shutil.copytree(canaries.folder, folder / str(canaries.folder).lstrip("/"), dirs_exist_ok=True)
    for name in ("etc", "tmp", "dev/shm"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(0o777)
    shutil.copyfile("/etc/passwd", folder / "etc/passwd")


def give_away(folder: Path, _: Canaries) -> None:
    """Lets every user write what is not shared with the real root."""
    for path in (folder, folder / "lib", *folder.glob("lib/python*/spade_runner.pyc")):
        path.chmod(0o777)


def decode_leniently(body: bytes) -> frames.Reply:
    """A frame as most programs would read it, where it is none that an honest runner sends."""
    with suppress(frames.ViolationError):
        return STRICT(body)
    value = json.loads(body.decode("utf-8", "replace"))
    parts = list(value.values()) if isinstance(value, dict) else value
    return frames.Stepped(*parts[1:7]) if len(parts) > 6 else frames.Hello(parts[1])


def expect_anything(self: Any, identity: int, limit_s: float, kind: Any, what: str) -> frames.Reply:
    """Takes any reply for the one that was asked for."""
    return frames.decode(self._receive(limit_s, what))


def unsealed_log() -> int:
    """A log that can grow."""
    return os.memfd_create("jail-log", os.MFD_CLOEXEC)


REMOVALS = {
    Barrier.CHILD_FILTER: Removal(runner=(("numbers = CHILD_DENIED[machine]\n", "numbers = ()\n"),)),
    Barrier.ALLOW_LIST: Removal(open_policy=True),
    Barrier.NETWORK: Removal(config=(("clone_newnet: true", "clone_newnet: false"), ("iface_no_lo: true", ""))),
    Barrier.IPC: Removal(config=(("clone_newipc: true", "clone_newipc: false"),)),
    Barrier.UTS: Removal(config=(("clone_newuts: true", "clone_newuts: false"), ('hostname: "jail"', ""))),
    Barrier.PRIVATE_ROOT: Removal(root=show_the_host),
    Barrier.READ_ONLY: Removal(flags=("--rw",)),
    Barrier.OWNER: Removal(root=give_away),
    Barrier.NO_PROC: Removal(
        config=(("mount_proc: false", "mount_proc: true"),), root=lambda folder, _: (folder / "proc").mkdir()
    ),
    Barrier.ENVIRONMENT: Removal(
        config=(("keep_env: false", "keep_env: true"),),
        launcher=((EXECUTE, EXECUTE.replace("{}", f'{{"{VARIABLE}": "CANARY_WORD"}}')),),
    ),
    Barrier.DESCRIPTORS: Removal(
        config=(("pass_fd: 3", "pass_fd: 3\npass_fd: 9"),),
        launcher=((EXECUTE, f'os.dup2(os.open("CANARY_FILE", os.O_RDONLY), 9, True); {EXECUTE}'),),
    ),
    Barrier.CONTROL: Removal(runner=(("            posix.close(CONTROL_FD)\n", ""),)),
    Barrier.ADDRESS_SPACE: Removal(runner=(("PLAIN_SPACE = 64 << 20\n", "PLAIN_SPACE = 900 << 20\n"),)),
    Barrier.MEMORY: Removal(memory_factor=8),
    Barrier.PIDS: Removal(pids=4096),
    Barrier.NPROC: Removal(config=(("rlimit_nproc: 128", "rlimit_nproc: 4096"),)),
    Barrier.OPEN_FILES: Removal(config=(("rlimit_nofile: 24", "rlimit_nofile: 64"),)),
    Barrier.CALL_CPU: Removal(limits={"step_s": 9.0}),
    Barrier.CALL_TIME: Removal(limits={"step_s": 30.0}),
    Barrier.SESSION_CPU: Removal(limits={"cpu_s": 30}),
    Barrier.COMPILE_CPU: Removal(runner=(("COMPILE_CPU_S = 2\n", "COMPILE_CPU_S = 120\n"),), limits={"start_s": 4.0}),
    Barrier.STEPS: Removal(limits={"steps": 99}),
    Barrier.FRAME_SIZE: Removal(limits={"max_frame_bytes": 0xFFFFFFFF}),
    Barrier.TEXT_SIZE: Removal(runner=(("MAX_TEXT = 60000\n", "MAX_TEXT = 1 << 20\n"),)),
    Barrier.OUTPUT: Removal(runner=tuple((f"            posix.dup2(0, {number}, False)\n", "") for number in (1, 2))),
    Barrier.LOG_SEAL: Removal(host=((jail, "_sealed_log", unsealed_log),)),
    Barrier.STRICT_DECODING: Removal(host=((frames, "decode", decode_leniently),)),
    Barrier.MATCH: Removal(host=((session.EpisodeSession, "_expect", expect_anything),)),
    Barrier.NOTHING_UNASKED: Removal(
        host=tuple((frames.Channel, name, lambda self: None) for name in ("check_quiet", "check_behind"))
    ),
}


class SpaciousTable(SlotTable):
    """Slots with larger limits than asked for."""

    memory_factor = 1
    pids = 0

    def take(self, memory_bytes: int, pids: int) -> Slot:
        return super().take(memory_bytes * self.memory_factor, max(pids, self.pids))


@contextmanager
def weakened(barriers: frozenset[Barrier], canaries: Canaries) -> Iterator[Sandbox]:
    """A zygote sandbox without `barriers`. `without` has to stand around its use for those of the host."""
    removals = [REMOVALS[barrier] for barrier in barriers]
    folder = Path(tempfile.mkdtemp(prefix=rootcache.BUILDING, dir=root.default_cache_dir()))
    with pytest.MonkeyPatch.context() as patch:
        try:
            folder.chmod(0o755)
            program = launch.PROGRAM.read_text()
            for removal in removals:
                program = changed(program, removal.launcher)
            (folder / "launcher.py").write_text(canaries.fill(program).replace("CANARY_WORD", canaries.word))
            patch.setattr(launch, "PROGRAM", folder / "launcher.py")
            sandbox, _, _ = build_sandbox("zygote", 1, 0, None)
            sandbox._setup = _weakened_setup(sandbox, removals, folder, canaries)
            sandbox._table.__class__ = SpaciousTable
            sandbox._table.memory_factor = max(removal.memory_factor for removal in removals)  # type: ignore[attr-defined]
            sandbox._table.pids = max(removal.pids for removal in removals)  # type: ignore[attr-defined]
            try:
                yield sandbox
            finally:
                sandbox.close()
        finally:
            shutil.rmtree(folder)


@contextmanager
def without(barriers: frozenset[Barrier]) -> Iterator[None]:
    """The host without those of `barriers` that are its own."""
    with pytest.MonkeyPatch.context() as patch:
        for barrier in barriers:
            for target, name, value in REMOVALS[barrier].host:
                patch.setattr(target, name, value)
        yield


def larger(limits: Limits, barriers: frozenset[Barrier]) -> Limits:
    """A session's limits without those of `barriers` that are among them."""
    for barrier in barriers:
        limits = replace(limits, **REMOVALS[barrier].limits)
    return limits


def peeled(layers: tuple[Layer, ...], count: int) -> frozenset[Barrier]:
    """The first `count` barriers."""
    return frozenset(layer.barrier for layer in layers[:count])


def changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    """The text with each change made. Fails where what is to go does not stand there exactly once: a barrier that was renamed or
    moved would stay, and a test would show nothing."""
    for old, new in changes:
        found = text.count(old) if old else 0
        assert found == 1, f"the barrier is not where this test takes it from: {old!r} stands there {found} times"
        text = text.replace(old, new)
    return text


def _weakened_setup(sandbox: NsjailSandbox, removals: list[Removal], folder: Path, canaries: Canaries) -> jail.JailSetup:
    setup = sandbox._setup
    config, policy, flags = setup.config.read_text(), setup.policy.read_text(), ""
    for removal in removals:
        config = changed(config, removal.config)
        policy = OPEN_POLICY if removal.open_policy else policy
        flags += "".join(f"{flag} " for flag in removal.flags)
    (folder / "jail.cfg").write_text(config)
    (folder / "seccomp.kafel").write_text(policy)
    wrapper = folder / "nsjail"
    wrapper.write_text(f'#!/bin/sh\nexec {setup.nsjail} {flags}"$@"\n')
    wrapper.chmod(0o755)
    return replace(
        setup,
        nsjail=wrapper,
        root=_weakened_root(setup.root, removals, folder / "root", canaries),
        config=folder / "jail.cfg",
        policy=folder / "seccomp.kafel",
    )


def _weakened_root(real: Path, removals: list[Removal], folder: Path, canaries: Canaries) -> Path:
    if not any(removal.runner or removal.root or removal.flags for removal in removals):
        return real
    shutil.copytree(real, folder, copy_function=os.link)  # its files are the real root's and stay as they are
    runner = runner_source()
    for removal in removals:
        runner = changed(runner, removal.runner)
    target = next(folder.glob("lib/python*/spade_runner.pyc"))
    target.unlink()
    root.place_runner(runner, target)
    for removal in removals:
        if removal.root is not None:
            removal.root(folder, canaries)
    return folder
