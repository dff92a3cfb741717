"""A stage that hangs in its start, as where the broker goes away in it, still ends with the cause, and on a signal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import BrokerError
from schemas.process import BrokerSettings, ProcessContext
from streams import app
from streams.stage import Stage


class Shell:
    """A stage's shell whose Faust app never gets through its start."""

    def __init__(self, *_: object) -> None:
        self.stopped = asyncio.Event()
        self.failure: BaseException | None = None
        self.began = False
        self.stops = 0
        self.app = SimpleNamespace(start=self._start, stop=self._stop, crash_reason=None)

    async def _start(self) -> None:
        self.began = True
        await asyncio.Event().wait()

    async def _stop(self) -> None:
        self.stops += 1

    async def close(self) -> None:
        self.stops += 1

    def fail(self, problem: BaseException) -> None:
        self.failure = problem
        self.stopped.set()


@pytest.mark.parametrize(
    "cause", [BrokerError("broker b has been away for 1 s", "Start it again"), None], ids=["broker", "signal"]
)
def test_a_stage_whose_start_hangs_ends_with_the_cause(monkeypatch: pytest.MonkeyPatch, cause: BrokerError | None) -> None:
    made: list[Shell] = []

    def make(*given: object) -> Shell:
        made.append(Shell(*given))
        return made[-1]

    async def stop_it(shell: Shell, *_: object) -> None:
        while not shell.began:
            await asyncio.sleep(0)
        if cause is None:
            shell.stopped.set()
        else:
            shell.fail(cause)

    async def watch_nothing(*_: object) -> None: ...

    monkeypatch.setattr(app, "StageShell", make)
    monkeypatch.setattr(app, "_watch_end", watch_nothing)
    monkeypatch.setattr(app, "_watch_standstill", stop_it)
    run: Any = SimpleNamespace()
    context = ProcessContext(broker=BrokerSettings(address="127.0.0.1:1"), run_id="run")
    serving = app._serve(Stage.SCORE, run, context, 12, "", "one")
    assert asyncio.run(asyncio.wait_for(serving, 30)) == (cause, True)
    assert made[0].stops == 2
