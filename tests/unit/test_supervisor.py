"""The supervisor on real processes that behave badly in each way."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.guard import Guard
from infra.local.processes import born_at
from infra.supervisor import ProcessSpec, Supervisor, last_error
from schemas.errors import SupervisorError

LIMIT_S = 60.0


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A supervisor whose `python -m infra.cli CODE` runs CODE, from a stand-in module of the test's own."""
    package = tmp_path / "stand_in"
    (package / "infra").mkdir(parents=True)
    (package / "infra" / "__init__.py").touch()
    (package / "infra" / "cli.py").write_text("import sys; exec(sys.argv[1])")
    made = Supervisor(tmp_path / "logs", {"PYTHONPATH": str(package)}, restarts=2)
    yield made
    made.stop(deadline_s=2.0)


def until(supervisor: Supervisor, done: object) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end, "the awaited state did not come"
        supervisor.poll()
        time.sleep(0.02)


def test_child_that_ends_well_after_the_run_is_finished(supervisor: Supervisor) -> None:
    supervisor.may_end = True
    supervisor.start([ProcessSpec("good", ("print('done')",))])
    until(supervisor, lambda: not supervisor.running())
    assert "done" in (supervisor.log_dir / "good.log").read_text()


def test_failing_child_is_started_again_and_ends_the_run_with_its_last_error(supervisor: Supervisor) -> None:
    lines: list[str] = []
    supervisor.notify = lines.append
    code = "import sys; print('noise'); print('error: broker is gone. Start it', file=sys.stderr); sys.exit(3)"
    supervisor.start([ProcessSpec("bad", (code,))])
    with pytest.raises(SupervisorError, match=r"bad failed 3 times; last: bad exited with 3: error: broker is gone\. Start it"):
        until(supervisor, lambda: False)
    assert len(lines) == 2
    assert (supervisor.log_dir / "bad.log").read_text().count("noise") == 3


def test_exit_code_of_a_bad_setting_is_not_tried_again(supervisor: Supervisor) -> None:
    supervisor.start([ProcessSpec("unset", ("import sys; print('error: no such key'); sys.exit(2)",))])
    with pytest.raises(SupervisorError, match="unset failed; last: unset exited with 2: error: no such key"):
        until(supervisor, lambda: False)
    assert (supervisor.log_dir / "unset.log").read_text().count("no such key") == 1


def test_killed_child_is_started_again(supervisor: Supervisor) -> None:
    supervisor.start([ProcessSpec("victim", ("import time; print('up', flush=True); time.sleep(600)",))])
    first = supervisor.children["victim"].process
    assert first is not None
    until(supervisor, lambda: "up" in (supervisor.log_dir / "victim.log").read_text())
    first.kill()
    until(supervisor, lambda: (supervisor.log_dir / "victim.log").read_text().count("up") == 2)
    second = supervisor.children["victim"].process
    assert second is not None
    assert second.pid != first.pid


def test_causes_are_counted_apart(supervisor: Supervisor) -> None:
    """Twice killed and twice failed is within a limit of two for each cause."""
    state = supervisor.log_dir.parent / "state"
    code = (
        f"import os, pathlib, sys, time; state = pathlib.Path({str(state)!r});"
        "number = len(state.read_text()) if state.exists() else 0; state.write_text('x' * (number + 1));"
        "number < 4 and (os.kill(os.getpid(), 9) if number % 2 else sys.exit(3)); print('up', flush=True); time.sleep(600)"
    )
    supervisor.start([ProcessSpec("moody", (code,))])
    until(supervisor, lambda: "up" in (supervisor.log_dir / "moody.log").read_text())
    assert supervisor.children["moody"].restarts.failures == {"moody exited with 3": 2, "moody was ended by SIGKILL": 2}


def test_child_that_misses_a_guarded_service_is_not_to_blame(supervisor: Supervisor, tmp_path: Path) -> None:
    """While the broker was down lately, what fails because it can't reach it is started again however often."""
    state = tmp_path / "tries"
    code = (
        f"import pathlib, sys, time; state = pathlib.Path({str(state)!r});"
        "number = len(state.read_text()) if state.exists() else 0; state.write_text('x' * (number + 1));"
        "number < 4 and sys.exit(3); time.sleep(600)"
    )

    class Fallen:
        log, exit_code, lives = tmp_path / "broker.log", -9, False

        def alive(self) -> bool:
            return self.lives

        def restart(self) -> None:
            self.lives = True

    supervisor.guards = [Guard("broker", Fallen())]
    supervisor.start([ProcessSpec("lonely", (code,))])
    until(supervisor, lambda: state.exists() and state.read_text() == "x" * 5)
    assert not supervisor.children["lonely"].restarts.failures


def test_child_that_ends_early_is_started_again(supervisor: Supervisor) -> None:
    supervisor.start([ProcessSpec("early", ("print('once')",))])
    until(supervisor, lambda: supervisor.children["early"].ended_well)
    assert supervisor.running() == ["early"]
    supervisor.may_end = True
    until(supervisor, lambda: not supervisor.running())


def test_stop_ends_children_that_ignore_sigterm_and_their_own_children(supervisor: Supervisor) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    supervisor.start([ProcessSpec("stubborn", (code,)), ProcessSpec("mild", ("import time; time.sleep(600)",))])
    log = supervisor.log_dir / "stubborn.log"
    until(supervisor, lambda: log.read_text().strip())
    pids = [child.process.pid for child in supervisor.children.values() if child.process is not None]
    pids.append(int(log.read_text().strip()))
    assert len(pids) == 3
    assert all(born_at(pid) for pid in pids)
    assert supervisor.stop(deadline_s=0.5) == ["stubborn"]
    end = time.monotonic() + 10
    while any(map(born_at, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(born_at, pids))


def test_children_end_with_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time; from pathlib import Path; from infra.local.processes import OwnedProcess;"
        f"own = OwnedProcess.start([sys.executable, '-c', 'import time; time.sleep(600)'], Path({str(tmp_path / 'log')!r}));"
        "time.sleep(0.5); print(own.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", code], dict(os.environ), file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)]
    )
    os.close(writer)
    with os.fdopen(reader) as source:
        child = int(source.readline())
    os.waitpid(pid, 0)
    end = time.monotonic() + 10
    while born_at(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not born_at(child)


def test_last_error_prefers_the_commands_own_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: of an earlier start\n")
    start = log.stat().st_size
    with log.open("a") as sink:
        sink.write("starting\nerror: disk full. Free some\nstray output of a library\n\n")
    assert last_error(log, start) == "error: disk full. Free some"
    assert last_error(tmp_path / "none") == ""
