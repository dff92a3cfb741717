"""Hostile programs in the real jail: one attack a test, each with its typed end, none with an effect outside."""

# ruff: noqa: PT012 - a session that must end is opened inside the block: its opening may end it too
from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.sandbox import EndReason, Limits, Sandbox, SessionEnd, is_infrastructure, open_sandbox

pytestmark = pytest.mark.integration

SHAPE = """
class HostileEnv:
    def __init__(self, max_turns=25):
        pass
    def reset(self, seed=None):
        return "ready", {{}}
    def step(self, action):
{body}
        return str(result), 0.0, True, False, {{}}
"""
QUICK = Limits(cpu_s=3, make_s=0.5, reset_s=0.5, step_s=0.5)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = open_sandbox("zygote", slots=2)
    yield opened
    opened.close()


def attack(sandbox: Sandbox, body: str, limits: Limits = QUICK) -> str:
    """Runs `body` as the step of an environment; gives what it put into `result`."""
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    with sandbox.open(SHAPE.format(body=lines), max_turns=25, limits=limits) as session:
        assert session.reset(1) == "ready"
        return session.step("go").observation


def end_of(sandbox: Sandbox, body: str, limits: Limits = QUICK) -> SessionEnd:
    """Runs `body`, which must end the session; gives the end."""
    with pytest.raises(SessionEnd) as caught:
        attack(sandbox, body, limits)
    return caught.value


def outcome(sandbox: Sandbox, body: str) -> str:
    """What `body` put into `result`, or the reason of the session's end."""
    try:
        return attack(sandbox, body)
    except SessionEnd as end:
        return end.reason


def refused(call: str) -> str:
    """A body that tells which error a call meets."""
    return f"""
import os, sys
try:
    {call}
    result = "it worked"
except OSError as error:
    result = type(error).__name__ + " " + str(error.errno)
"""


def test_jail_runs_an_honest_environment(sandbox: Sandbox) -> None:
    assert attack(sandbox, "result = action * 2") == "gogo"


FORBIDDEN_CALLS = {
    "fork": "import os\nresult = os.fork()",
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "thread": "import _thread\n_thread.start_new_thread(print, ())\nresult = 1",
    "exec": "import os\nresult = os.execv('/bin/python3', ['/bin/python3'])",
    "spawn": "import os\nresult = os.posix_spawn('/bin/python3', ['python3'], {})",
    "raw socket": "import _socket\nresult = _socket.socket()",
    "socket pair": "import _socket\nresult = _socket.socketpair()",
    "raise own limits": "import resource\nresult = resource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
    "pass descriptors": "import _socket\ns = _socket.socket(1, 1, 0, 4)\nresult = s.sendmsg([b'x'])",
    "receive descriptors": "import _socket\ns = _socket.socket(1, 1, 0, 4)\nresult = s.recvmsg(4, 64)",
}
RAW_CALLS = {"ptrace": 101, "mount": 165, "unshare": 272, "setns": 308, "bpf": 321, "io_uring_setup": 425, "keyctl": 250,
             "perf_event_open": 298, "process_vm_readv": 310, "userfaultfd": 323, "pivot_root": 155}  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN_CALLS)
def test_call_of_the_zygote_alone_ends_as_seccomp(sandbox: Sandbox, name: str) -> None:
    assert end_of(sandbox, FORBIDDEN_CALLS[name]).reason is EndReason.SECCOMP


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
@pytest.mark.parametrize("name", RAW_CALLS)
def test_system_call_that_only_an_attack_makes_ends_as_seccomp(sandbox: Sandbox, name: str) -> None:
    body = f"""
import _ctypes
class Long(_ctypes._SimpleCData):
    _type_ = "l"
class Call(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = Long
result = Call(_ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall"))({RAW_CALLS[name]}, 0, 0, 0, 0)
"""
    assert end_of(sandbox, body).reason is EndReason.SECCOMP


@pytest.mark.parametrize(
    "call",
    [
        "os.kill(1, 9)",
        "os.kill(-1, 9)",
        "os.setuid(0)",
        "os.chroot('/')",
        "os.mkdir('/x')",
        "os.unlink('/bin/python3')",
        "os.symlink('/', '/tmp')",
        "os.memfd_create('x')",
        "os.sched_setaffinity(0, [0])",
        "os.nice(-5)",
        "os.chmod('/bin/python3', 0o777)",
        "open('/bin/python3', 'wb')",
        "open('/tmp/x', 'w')",
        "open('/dev/shm/x', 'w')",
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "open('/sys/kernel/notes').read()",
        "open('/root/.bashrc').read()",
        "os.listdir('/home')",
        "os.read(3, 10)",
    ],
)
def test_call_that_reaches_out_fails_or_kills(sandbox: Sandbox, call: str) -> None:
    told = outcome(sandbox, refused(call))
    assert told == EndReason.SECCOMP or "Error" in told
    assert told != "it worked"


def test_memory_is_bounded_and_ends_as_oom(sandbox: Sandbox) -> None:
    assert end_of(sandbox, "hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 22))").reason is EndReason.OOM


def test_memory_hidden_from_the_exception_ends_as_data(sandbox: Sandbox) -> None:
    body = "kept = []\nwhile True:\n    try:\n        kept.append(bytearray(1 << 20))\n    except MemoryError:\n        pass"
    assert end_of(sandbox, body).reason is EndReason.CPU


def test_endless_loop_ends_as_cpu(sandbox: Sandbox) -> None:
    assert end_of(sandbox, "while True:\n    pass").reason is EndReason.CPU


def test_endless_loop_in_one_c_call_ends_as_cpu(sandbox: Sandbox) -> None:
    assert end_of(sandbox, "result = 7 ** (10 ** 9) % 3").reason in (EndReason.CPU, EndReason.OOM)


def test_loop_that_ignores_signals_ends_as_cpu(sandbox: Sandbox) -> None:
    body = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass"
    assert end_of(sandbox, body).reason is EndReason.CPU


def test_session_budget_of_cpu_ends_as_cpu_whatever_the_calls(sandbox: Sandbox) -> None:
    source = SHAPE.format(body="        n = 0\n        while n < 3_000_000:\n            n += 1\n        result = n").replace(
        "True, False", "False, False"
    )
    limits = Limits(cpu_s=1, step_s=5.0)
    with pytest.raises(SessionEnd) as caught, sandbox.open(source, max_turns=25, limits=limits) as session:
        session.reset(1)
        for _ in range(200):
            session.step("go")
    assert caught.value.reason is EndReason.CPU


def test_sleeping_ends_as_timeout_which_is_infrastructure(sandbox: Sandbox) -> None:
    end = end_of(sandbox, "import time\ntime.sleep(60)\nresult = 1")
    assert end.reason is EndReason.TIMEOUT
    assert is_infrastructure(end.reason)


READ_ALL = """
import os
for fd in range(3, 20):
    try:
        result = os.read(fd, 1)
    except OSError:
        pass
"""


def test_blocking_on_own_socket_ends_as_timeout(sandbox: Sandbox) -> None:
    assert end_of(sandbox, READ_ALL).reason in (
        EndReason.TIMEOUT,
        EndReason.PROTOCOL,
        EndReason.ENV_ERROR,
    )


def test_crash_of_the_interpreter_is_the_environments_error(sandbox: Sandbox) -> None:
    body = "import _ctypes\nresult = _ctypes.PyObj_FromPtr(1)"
    assert end_of(sandbox, body).reason is EndReason.ENV_ERROR


def test_leaving_the_process_is_the_environments_error(sandbox: Sandbox) -> None:
    assert end_of(sandbox, "import os\nos._exit(0)").reason is EndReason.ENV_ERROR


def test_exception_is_the_environments_error_and_shown_escaped(sandbox: Sandbox) -> None:
    end = end_of(sandbox, "raise ValueError('\\x1b[31mred\\x07')")
    assert end.reason is EndReason.ENV_ERROR
    assert "\\x1b[31mred\\x07" in end.evidence


def test_exit_of_the_interpreter_is_the_environments_error(sandbox: Sandbox) -> None:
    assert end_of(sandbox, "raise SystemExit(3)").reason is EndReason.ENV_ERROR


def test_exception_that_cannot_be_shown_is_still_typed(sandbox: Sandbox) -> None:
    body = "class Evil(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Evil"
    assert end_of(sandbox, body).reason is EndReason.ENV_ERROR


FLOOD = """
import sys
for _ in range(2000):
    print("x" * 1000)
sys.stderr.write("y" * 100000)
result = "done"
"""


def test_flood_of_output_goes_nowhere(sandbox: Sandbox) -> None:
    assert attack(sandbox, FLOOD) == "done"


FORGERIES = {
    "reply to another request": b'["stepped",1,"x",1.0,true,false,true]',
    "infinite reward": b'["stepped",ID,"x",1e999,true,false,true]',
    "not a number": b'["stepped",ID,"x",NaN,true,false,true]',
    "reward is a bool": b'["stepped",ID,"x",true,true,false,true]',
    "extra field": b'["stepped",ID,"x",1.0,true,false,true,"more"]',
    "surrogate": b'["stepped",ID,"\\ud800",1.0,true,false,true]',
    "object": b'{"stepped":1}',
    "not UTF-8": b'["stepped",ID,"\xff",1.0,true,false,true]',
    "deep nesting": b"[" * 20000,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_frame_ends_as_protocol(sandbox: Sandbox, name: str) -> None:
    body = f"""
import os, struct, sys
frame = sys._getframe()
while "frame" not in frame.f_locals or "request" not in frame.f_locals:
    frame = frame.f_back
identity = str(frame.f_locals["request"][1]).encode()
forged = {FORGERIES[name]!r}.replace(b"ID", identity)
os.write(frame.f_locals["self"].channel, struct.pack(">I", len(forged)) + forged)
import time
time.sleep(5)
result = 1
"""
    assert end_of(sandbox, body).reason is EndReason.PROTOCOL


def test_second_reply_behind_an_honest_one_ends_as_protocol(sandbox: Sandbox) -> None:
    source = """
import os, sys, struct
class TwiceEnv:
    def __init__(self, max_turns=25):
        frame = sys._getframe()
        while "request" not in frame.f_code.co_varnames:
            frame = frame.f_back
        self.child = frame.f_locals["self"]
    def reset(self, seed=None):
        return "ready", {}
    def step(self, action):
        extra = b'["stepped",5,"x",1.0,true,false,true]'
        os.write(self.child.channel, struct.pack(">I", len(extra)) + extra)
        return "x", 1.0, True, False, {}
"""
    with pytest.raises(SessionEnd) as caught, sandbox.open(source, max_turns=25, limits=QUICK) as session:
        session.reset(1)
        session.step("go")
    assert caught.value.reason is EndReason.PROTOCOL


def test_frame_that_promises_gigabytes_ends_as_protocol(sandbox: Sandbox) -> None:
    body = """
import os, sys, time
frame = sys._getframe()
while "request" not in frame.f_locals:
    frame = frame.f_back
os.write(frame.f_locals["self"].channel, bytes([255] * 4))
time.sleep(5)
result = 1
"""
    assert end_of(sandbox, body).reason is EndReason.PROTOCOL


def test_observation_over_the_frame_limit_ends_as_protocol(sandbox: Sandbox) -> None:
    assert end_of(sandbox, "result = 'x' * 70000").reason is EndReason.PROTOCOL


def test_environment_variables_of_the_host_are_not_there(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "secret")
    found = attack(sandbox, "import os\nresult = sorted(os.environ)")
    assert "CANARY" not in found
    assert "PYTHONHASHSEED" in found


def test_descriptors_of_the_host_are_not_inherited(sandbox: Sandbox) -> None:
    body = """
import os
opened = []
for fd in range(64):
    try:
        os.fstat(fd)
        opened.append(fd)
    except OSError:
        pass
result = opened
"""
    found = attack(sandbox, body)
    assert len(found.split(",")) == 4


def test_server_on_loopback_and_abstract_socket_are_out_of_reach(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0spade-canary")
        abstract.listen()
        port = server.getsockname()[1]
        for target in (
            f"_socket.socket(2, 1)\nresult = s.connect(('127.0.0.1', {port}))",
            "_socket.socket(1, 1)\nresult = s.connect('\\0spade-canary')",
        ):
            assert end_of(sandbox, f"import _socket\ns = {target}").reason is EndReason.SECCOMP


def test_world_readable_file_of_the_host_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret")
    canary.chmod(0o644)
    assert "FileNotFoundError" in attack(sandbox, refused(f"open({str(canary)!r}).read()"))


def test_user_inside_is_nobody_and_sees_no_shell(sandbox: Sandbox) -> None:
    assert attack(sandbox, "import os\nresult = (os.getuid(), sorted(os.listdir('/')), os.listdir('/bin'))") == (
        "(65534, ['bin', 'lib', 'lib64'], ['python3'])"
    )


def test_siblings_cannot_share_anything(sandbox: Sandbox) -> None:
    source = SHAPE.format(
        body="        import math\n        result = getattr(math, 'left', 'nothing')\n        math.left = 'a trace'"
    )
    found = []
    with sandbox.open(source, max_turns=25) as first, sandbox.open(source, max_turns=25) as second:
        for session in (first, second):
            session.reset(1)
            found.append(session.step("go").observation)
    assert found == ["nothing", "nothing"]


def test_failing_episode_leaves_its_siblings_alone(sandbox: Sandbox) -> None:
    source = SHAPE.format(
        body="        if action == 'die':\n            __import__('os')._exit(1)\n        result = 'alive'"
    ).replace("True, False", "False, False")
    with sandbox.open(source, max_turns=25, limits=QUICK) as healthy:
        healthy.reset(1)
        with pytest.raises(SessionEnd), sandbox.open(source, max_turns=25, limits=QUICK) as dying:
            dying.reset(1)
            dying.step("die")
        assert healthy.step("go").observation == "alive"


def test_more_steps_than_allowed_end_as_budget(sandbox: Sandbox) -> None:
    source = SHAPE.format(body="        result = 1").replace("True, False", "False, False")
    with pytest.raises(SessionEnd) as caught, sandbox.open(source, max_turns=25, limits=Limits(steps=3)) as session:
        session.reset(1)
        for _ in range(4):
            session.step("go")
    assert caught.value.reason is EndReason.BUDGET


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("'x', True, True, False, {}", "types"),
        ("'x', '1', True, False, {}", "types"),
        ("'x', float('nan'), True, False, {}", "nonfinite"),
        ("'x', float('inf'), True, False, {}", "nonfinite"),
        ("'x', 10 ** 400, True, False, {}", "nonfinite"),
        ("'x', 1.0, 1, False, {}", "types"),
        ("b'x', 1.0, True, False, {}", "types"),
        ("'\\ud800', 1.0, True, False, {}", "types"),
        ("'x', 1.0, True, False, None", "types"),
        ("'x', 1.0, True, False", "types"),
    ],
)
def test_reply_outside_the_contract_is_the_environments_error(sandbox: Sandbox, reply: str, kind: str) -> None:
    end = end_of(sandbox, f"return {reply}\nresult = 1")
    assert (end.reason, end.kind) == (EndReason.ENV_ERROR, kind)


def test_forbidden_work_at_module_level_ends_the_session_too(sandbox: Sandbox) -> None:
    with pytest.raises(SessionEnd) as caught, sandbox.open("while True:\n    pass\n", max_turns=25, limits=QUICK) as session:
        session.reset(1)
    assert caught.value.reason is EndReason.CPU


def test_source_that_does_not_compile_is_the_environments_error(sandbox: Sandbox) -> None:
    for source in ("def", "(" * 5000, "x = " + "-" * 20000 + "1", "\x00"):
        with pytest.raises(SessionEnd) as caught, sandbox.open(source, max_turns=25, limits=QUICK) as session:
            session.reset(1)
        assert caught.value.reason is EndReason.ENV_ERROR


def test_sessions_of_many_sources_and_threads_interleave(sandbox: Sandbox) -> None:
    sources = [
        SHAPE.format(body=f"        result = action + '{number}'").replace("True, False", "False, False") for number in range(4)
    ]
    wrong: list[str] = []

    def play(source: str, number: int) -> None:
        sessions = [sandbox.open(source, max_turns=25) for _ in range(4)]
        for session in sessions:
            session.reset(1)
        for turn in range(5):
            wrong.extend("" for session in sessions if session.step(str(turn)).observation != f"{turn}{number}")
        for session in sessions:
            session.close()

    threads = [threading.Thread(target=play, args=(source, number)) for number, source in enumerate(sources)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
