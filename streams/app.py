"""Runs one stream stage as a process: `run("design" | "rollout" | "score" | "batch", context)`.

In: the run's first record, the log. Out: the stage's records. Called by infra.cli. Blocks until the run has finished and its
inputs are acknowledged, or until SIGTERM or SIGINT; raises SpadeError for everything that a person must mend.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from infra.clock import SystemClock
from infra.kafka import BrokerWatch, ControlReader, count_partitions, make_consumer
from infra.runs import Run, await_run
from infra.telemetry import get_logger
from schemas.errors import BrokerError, SettingsError, StageTimeoutError
from schemas.process import BrokerSettings, ProcessContext
from schemas.topics import Topic
from streams.membership import Membership
from streams.shell import StageShell
from streams.stage import Stage, group_name
from streams.watchdog import Part, PartView, Watchdog, read_group

WATCH_S = 0.5
POLL_STOP_S = 0.2
STOP_LIMIT_S = 20.0
GONE_LIMIT_S = 3.0  # where the broker is gone there is nothing to leave or to write
REACH_S = 5.0  # between two looks whether the broker is there
LOOK_S = 20.0  # between two looks of the watchdog
QUIET_S = 1.0  # without inputs, after the run has finished
DRAIN_LIMIT_S = 20.0


def run(stage: str, context: ProcessContext) -> None:
    """Serves one stage of the run that `context` names until the run has finished."""
    try:
        chosen = Stage(stage)
    except ValueError:
        known = ", ".join(each.value for each in Stage)
        raise SettingsError(f"there is no stream stage {stage!r}", f"Name one of {known}") from None
    found = await_run(context)
    partitions = common_partitions(context.broker)
    with (
        Membership(group_name(chosen, found.run_id)) as member,
        _faust_folder(context, member.instance_id) as data_dir,
    ):
        failure = _run_to_its_end(_serve(chosen, found, context, partitions, data_dir, member.instance_id))
    if failure is not None:
        raise failure


@contextlib.contextmanager
def _faust_folder(context: ProcessContext, instance_id: str) -> Iterator[str]:
    """Where Faust may write: below the state folder by the member's name, which is used again, so that kills leave no more of
    them; without a state folder a temporary one."""
    if not context.state_dir:
        with tempfile.TemporaryDirectory(prefix="spade-stream-") as folder:
            yield folder
        return
    place = Path(context.state_dir) / "faust" / instance_id
    place.mkdir(parents=True, exist_ok=True)
    yield str(place)


def _run_to_its_end(serving: Coroutine[Any, Any, tuple[BaseException | None, bool]]) -> BaseException | None:
    """As asyncio.run, but tasks of a stage that did not stop in time, which refuse to be cancelled, end with the process."""
    runner = asyncio.Runner()
    try:
        failure, ended = runner.run(serving)
    except BaseException:
        runner.close()
        raise
    if ended:
        runner.close()
    return failure


def common_partitions(broker: BrokerSettings) -> int:
    """How many partitions every topic has. Raises BrokerError where they differ: equal keys must meet in one worker."""
    consumer = make_consumer(broker, None, ())
    try:
        counts = {topic.wire: count_partitions(consumer, topic.wire, broker) for topic in Topic}
    finally:
        consumer.close()
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{wire} {number}" for wire, number in sorted(counts.items()))
        raise BrokerError(f"the topics have different numbers of partitions ({told})", "Give all of them the same number")
    return next(iter(counts.values()))


async def _serve(
    stage: Stage, found: Run, context: ProcessContext, partitions: int, data_dir: str, instance_id: str
) -> tuple[BaseException | None, bool]:
    """Serves; what ended the stage (None: all went well), and whether everything in it has stopped."""
    shell = StageShell(stage, found, context, partitions, data_dir, SystemClock(), instance_id)
    restore = _on_signals(shell.stopped.set)
    watches = [
        asyncio.create_task(_watch_end(shell, found, context.broker)),
        asyncio.create_task(_watch_standstill(shell, found, context.broker)),
    ]
    starting = asyncio.create_task(shell.app.start())  # waits for ever where the broker goes away in it
    try:
        while not shell.stopped.is_set():
            if starting.done():
                starting.result()
            if shell.app.crash_reason is not None:
                shell.fail(shell.app.crash_reason)
            await _wait(shell.stopped, POLL_STOP_S)
    finally:
        shell.stopped.set()
        await asyncio.gather(*watches, return_exceptions=True)
        ended = await _end(shell, starting)
        restore()
    return shell.failure, ended


async def _end(shell: StageShell, starting: asyncio.Task[Any]) -> bool:
    """Stops Faust and the shell; False where something hangs, which is left to the end of the process."""
    ended, limit_s = True, GONE_LIMIT_S if isinstance(shell.failure, BrokerError) else STOP_LIMIT_S
    starting.cancel()
    for ending in (asyncio.wait([starting]), shell.app.stop(), shell.close()):
        try:
            await asyncio.wait_for(ending, limit_s)
        except TimeoutError:
            get_logger("streams.app").warning("the stage did not stop in time", limit_s=limit_s)
            ended = False
    return ended


async def _watch_end(shell: StageShell, found: Run, broker: BrokerSettings) -> None:
    """Stops the shell once the run has finished and what it left is acknowledged, or DRAIN_LIMIT_S later."""
    log = get_logger("streams.app")
    reader = await asyncio.to_thread(ControlReader, broker, [Topic.RUN_FINISHED], found.run_id)
    try:
        while not shell.stopped.is_set() and not await asyncio.to_thread(reader.poll, WATCH_S):
            pass
        finished = time.monotonic()
        while not shell.stopped.is_set():
            now = time.monotonic()
            if not shell.is_ready:
                finished = now  # what waits can't be read yet; the watchdog limits that
            quiet = shell.is_idle and now - max(shell.last_activity, finished) > QUIET_S
            if quiet and await _has_read_all(shell, found, broker):
                break
            if now - finished > DRAIN_LIMIT_S:
                log.warning("run finished with inputs held", held=shell.held.count)
                break
            await _wait(shell.stopped, POLL_STOP_S)
    except Exception as problem:  # noqa: BLE001 - the boundary: raised again by _serve
        shell.fail(problem)
    finally:
        await asyncio.to_thread(reader.close)
        shell.stopped.set()


async def _has_read_all(shell: StageShell, found: Run, broker: BrokerSettings) -> bool:
    """Whether the stage has taken all that its partitions hold now; being quiet alone may be the delay of a fetch."""
    views = await _view(shell, found, broker)
    return views is not None and not any(one.is_behind for one in views.values())


async def _view(shell: StageShell, found: Run, broker: BrokerSettings) -> dict[Part, PartView] | None:
    """The stage's partitions as the broker sees them; None where they moved while it was asked."""
    parts, taken = set(shell.assigned), dict(shell.taken)
    finished = {part: shell.held.commit_position(*part) for part in parts}
    group = group_name(shell.stage, found.run_id)
    views = await asyncio.to_thread(read_group, broker, group, parts, taken, finished)
    return views if parts == shell.assigned else None


async def _watch_standstill(shell: StageShell, found: Run, broker: BrokerSettings) -> None:
    """Stops the shell with the cause once the broker is away, or the stage stands still, for longer than the limit."""
    log = get_logger("streams.app")
    reachable, limit_s = BrokerWatch(broker), found.recipe.processes.stand_still_s
    dog, look_at = Watchdog(shell.stage.value, limit_s), 0.0
    try:
        while not shell.stopped.is_set():
            await asyncio.to_thread(reachable.check)
            if reachable.away:
                dog.forget()
            elif time.monotonic() >= look_at:
                look_at = time.monotonic() + min(LOOK_S, limit_s / 4)
                try:
                    cause = await _look(shell, found, broker, dog)
                except BrokerError as problem:
                    log.info("the broker does not tell how far the group is", cause=problem.cause)
                    dog.forget()
                    continue
                if cause:
                    raise StageTimeoutError(cause, "Started again it goes on where it was; processes.stand_still_s is the limit")
            await _wait(shell.stopped, min(REACH_S, limit_s / 4))
    except Exception as problem:  # noqa: BLE001 - the boundary: raised again by _serve
        shell.fail(problem)


async def _look(shell: StageShell, found: Run, broker: BrokerSettings, dog: Watchdog) -> str:
    if not shell.is_ready:
        return dog.look_unready(time.monotonic())
    views = await _view(shell, found, broker)
    return "" if views is None else dog.look(time.monotonic(), views)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return


def _on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """SIGTERM and SIGINT stop the stage; returns what takes the handlers off. Nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, stop)

    def restore() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    return restore
