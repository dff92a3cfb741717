"""Hostile programs in the real jail: one attack a test, each with its typed end, none with an effect outside. What each barrier
holds is shown in test_sandbox_barriers.py."""

# ruff: noqa: PT012 - a session that must end is opened inside the block: its opening may end it too
from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.cli.app import run_app
from workers.sandbox import EndReason, Limits, Sandbox, SessionEnd, attacks, open_sandbox
from workers.sandbox.attacks import ATTACKS
from workers.sandbox.attacks.base import QUICK, Attack
from workers.sandbox.attacks.drill import GONE_S, Drill, descendants, running

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


@pytest.fixture(scope="module")
def drill() -> Iterator[Drill]:
    """One sandbox for all attacks; whatever any of them left on the host fails the module."""
    opened = Drill()
    yield opened
    assert opened.close() == []


@pytest.fixture(scope="module")
def sandbox(drill: Drill) -> Sandbox:
    return drill.sandbox


def told(sandbox: Sandbox, body: str, limits: Limits = QUICK) -> str:
    """Runs `body` as the step of an environment; gives what it put into `result`."""
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    with sandbox.open(SHAPE.format(body=lines), max_turns=25, limits=limits) as session:
        assert session.reset(1) == "ready"
        return session.step("go").observation


def end_of(sandbox: Sandbox, body: str, limits: Limits = QUICK) -> SessionEnd:
    """Runs `body`, which must end the session; gives the end."""
    with pytest.raises(SessionEnd) as caught:
        told(sandbox, body, limits)
    return caught.value


def episodes_alive(sandbox: Sandbox) -> int:
    """Processes in the sandbox's jails beside nsjail and the zygote, once those that end just now had time to."""
    jails = sandbox._live  # type: ignore[attr-defined]
    deadline = time.monotonic() + GONE_S
    while True:
        alive = sum(len(running(descendants(jail.pid))) - 1 for jail in jails)
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.005)


def test_there_are_attacks_of_each_kind_and_no_two_alike() -> None:
    assert len(ATTACKS) >= 160
    assert len({attack.name for attack in ATTACKS}) == len({attack.program for attack in ATTACKS}) == len(ATTACKS)
    kinds = (attacks.filesystem, attacks.secrets, attacks.syscalls, attacks.siblings, attacks.resources, attacks.protocol)
    assert all(len(kind.ATTACKS) >= 15 for kind in kinds)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_is_stopped_by_its_barrier_and_leaves_nobody(drill: Drill, attack: Attack) -> None:
    tried = drill.carry_out(attack)
    assert tried.held, (tried.outcome, tried.trouble)
    assert episodes_alive(drill.sandbox) == 0


def test_doctor_tells_what_held_and_fails_where_something_did_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attacks, "ATTACKS", ATTACKS[:2])
    assert run_app(["doctor", "--attack"]) == 0
    shown = capsys.readouterr().out
    assert ATTACKS[0].name in shown
    assert "2 held, 0 did not" in shown
    wrong = dataclasses.replace(ATTACKS[0], name="an attack\x1b[2J", layers=ATTACKS[2].layers, program=ATTACKS[5].program)
    monkeypatch.setattr(attacks, "ATTACKS", (*ATTACKS[:2], wrong))
    assert run_app(["doctor", "--attack"]) == 1
    shown = capsys.readouterr().out
    assert "NOT" in shown
    assert "2 held, 1 did not" in shown
    assert "\x1b[2J" not in shown


def test_doctor_tells_what_came_of_each_attack_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = dataclasses.replace(ATTACKS[0], name="another", layers=ATTACKS[2].layers, program=ATTACKS[5].program)
    monkeypatch.setattr(attacks, "ATTACKS", (ATTACKS[0], wrong))
    assert run_app(["doctor", "--attack", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["held"], told["not_held"], told["left"]) == (1, 1, [])
    assert told["sandbox_level"] in ("full", "rootless")
    first, second = told["attacks"]
    assert (first["attack"], first["barrier"], first["held"]) == (ATTACKS[0].name, ATTACKS[0].barrier, True)
    assert first["outcome"].startswith(first["expected"])
    assert (second["attack"], second["held"]) == ("another", False)
    assert not second["outcome"].startswith(second["expected"])


def test_jail_runs_an_honest_environment(sandbox: Sandbox) -> None:
    assert told(sandbox, "result = action * 2") == "gogo"


def test_exception_is_the_environments_error_and_shown_escaped(sandbox: Sandbox) -> None:
    end = end_of(sandbox, "raise ValueError('\\x1b[31mred\\x07')")
    assert end.reason is EndReason.ENV_ERROR
    assert "\\x1b[31mred\\x07" in end.evidence


def test_exception_that_cannot_be_shown_is_still_typed(sandbox: Sandbox) -> None:
    body = "class Evil(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Evil"
    assert end_of(sandbox, body).reason is EndReason.ENV_ERROR


def test_nothing_but_the_fixed_variables_is_in_the_environment(sandbox: Sandbox) -> None:
    names = ["HOME", "LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    names += ["PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONHOME"]
    assert told(sandbox, "import os\nresult = sorted(os.environ)") == str(names)


def test_user_inside_is_nobody_and_sees_no_shell(sandbox: Sandbox) -> None:
    assert told(sandbox, "import os\nresult = (os.getuid(), sorted(os.listdir('/')), os.listdir('/bin'))") == (
        "(65534, ['bin', 'lib', 'lib64'], ['python3'])"
    )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_whatever_bytes_a_jail_sends_its_session_ends_typed_or_has_a_reply(drill: Drill, sent: bytes) -> None:
    body = "        import os\n        os.write(4, bytes.fromhex(action))\n        os._exit(0)"
    with pytest.raises(SessionEnd) as caught, drill.sandbox.open(SHAPE.format(body=body), max_turns=25, limits=QUICK) as session:
        session.reset(1)
        while True:
            session.step(sent.hex())
    assert caught.value.reason in (EndReason.PROTOCOL, EndReason.ENV_ERROR)


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


def test_source_that_does_not_compile_is_the_environments_error(sandbox: Sandbox) -> None:
    for source in ("def", "\x00", "x = 1\n  y = 2", "return 1", ""):
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


def test_a_sandbox_that_is_not_the_suites_ends_what_it_ran() -> None:
    sandbox = open_sandbox("fresh")
    session = sandbox.open(SHAPE.format(body="        while True:\n            pass"), max_turns=25, limits=Limits(step_s=0.2))
    session.reset(1)
    with pytest.raises(SessionEnd) as caught:
        session.step("go")
    sandbox.close()
    with pytest.raises(SessionEnd) as again:
        session.step("go")
    assert caught.value is again.value
