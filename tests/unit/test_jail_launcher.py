"""The host's side of the launcher: starts are not waited for, answers find who asked, and a launcher that is gone is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import SandboxError
from workers.sandbox import launch
from workers.sandbox.launch import LauncherClient

# answers as the launcher does, and starts nothing
ANSWERING = """
import json, socket, sys
host = socket.socket(fileno=int(sys.argv[1]))
while data := host.recv(1 << 16):
    request = json.loads(data)
    number = request["id"]
    answer = {"pid": 1000 + number} if request["op"] == "start" else {"status": number, "cpu_s": 0.5}
    host.send(json.dumps({"id": number, **answer}).encode())
"""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LauncherClient]:
    program = tmp_path / "answering.py"
    program.write_text(ANSWERING)
    monkeypatch.setattr(launch, "PROGRAM", program)
    opened = LauncherClient()
    yield opened
    opened.close()


def start(client: LauncherClient) -> int:
    return client.start(["/bin/true"], [], 1, [], [2])


def test_starts_whose_answers_nobody_reads_never_fill_the_socket(client: LauncherClient) -> None:
    started = [start(client) for _ in range(2000)]
    assert started == list(range(1, 2001))
    assert client.pid(2000) == 3000
    assert client.pid(7) == 1007


def test_an_end_is_told_to_who_asked_for_it_whatever_came_before(client: LauncherClient) -> None:
    first, second = start(client), start(client)
    assert client.stop(second) == (second, 0.5)
    assert client.pid(first) == 1000 + first
    assert client.stop(first) == (first, 0.5)
    assert not client._pids
    assert not client._ends


def test_launcher_that_is_gone_starts_nothing_and_tells_no_end(client: LauncherClient) -> None:
    number = start(client)
    client._process.kill()
    client._process.wait(10)
    with pytest.raises(SandboxError, match="launcher"):
        start(client)
    assert client.stop(number) == (-1, 0.0)
    with pytest.raises(SandboxError, match="launcher"):
        client.pid(number + 100)
