"""An episode's session: one forked child of a jail, spoken to in frames, bounded by deadlines and budgets.

In: seeds and actions. Out: observations and step results, or a typed end. Who calls: the engine makes them, the gate and the
rollout workers use them. Each call blocks at most its limit (base.Limits). Not for several threads at once.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from infra.plaintext import escape_line
from workers.sandbox import frames
from workers.sandbox.base import EndReason, ErrorKind, Limits, SessionEnd, StepResult
from workers.sandbox.jail import Jail, child_cpu_s

CREDENTIALS: Final = struct.Struct("iII")
SEND_S: Final = 5.0
KILL_S: Final = 2.0
# how long a process may take to be gone once its channel is closed
LINGER_S: Final = 1.0
# where the kernel does not tell its state, a child computes if at least this share of the waited time went into its CPU time
BUSY_SHARE: Final = 0.003
CPU_TICK_S: Final = 0.02
RUNNING, ASLEEP, STOPPED = "running", "asleep", "stopped"
_KINDS: Final = {"raised": ErrorKind.RAISED, "types": ErrorKind.TYPES, "nonfinite": ErrorKind.NONFINITE}

ReplyT = TypeVar("ReplyT", bound=frames.Reply)


class EpisodeSession:
    """See base.Session. `on_close(session, misbehaved)` tells the engine that the child is gone, `on_first()` that the first
    request was answered."""

    def __init__(
        self,
        jail: Jail,
        max_turns: int,
        limits: Limits,
        on_close: Callable[[EpisodeSession, bool], None],
        on_first: Callable[[], None],
    ) -> None:
        self.jail = jail
        self.first_info_empty = True
        self._limits = limits
        self._on_close = on_close
        self._on_first: Callable[[], None] | None = on_first
        self._closed = False
        self._ended: SessionEnd | None = None
        self._steps = 0
        self._pid = 0
        self._pidfd = -1
        self._made = False
        self._cpu_began = 0.0
        self._oom_before = jail.known_oom_kills
        self._number, sock = jail.fork(max_turns, limits)
        self._greet(sock)

    def _greet(self, sock: socket.socket) -> None:
        """Reads the child's hello, which carries its process id as the kernel sees it, from before it ran any source."""
        self._channel = frames.Channel(sock, self._limits.max_frame_bytes)
        hello = frames.HEADER.size + len(f'["hello",{self._number}]')
        try:
            self._channel.wait_readable(self._limits.start_s)
            data, ancillary, _, _ = sock.recvmsg(hello, socket.CMSG_SPACE(CREDENTIALS.size))
        except TimeoutError:
            raise self._end(EndReason.TIMEOUT, "the jail did not start in time") from None
        except OSError:
            data, ancillary = b"", []
        for _, kind, payload in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                self._pid = CREDENTIALS.unpack(payload[: CREDENTIALS.size])[0]
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        if not data or not self._pid:
            raise self._finish(self.jail.explain_death())
        with suppress(OSError):
            self._pidfd = os.pidfd_open(self._pid)

    def reset(self, seed: int) -> str:
        """See base.Session."""
        if not 0 <= seed < 1 << 63:
            raise ValueError(f"seed {seed} is out of range")
        self._await_made()
        began = self._ask("reset", seed, self._limits.reset_s, frames.Began)
        self.first_info_empty = began.info_empty
        return began.observation

    def step(self, action: str) -> StepResult:
        """See base.Session."""
        self._check_open()
        if self._steps >= self._limits.steps:
            raise self._end(EndReason.BUDGET, f"more than {self._limits.steps} steps")
        self._steps += 1
        self._await_made()
        reply = self._ask("step", action, self._limits.step_s, frames.Stepped)
        if not math.isfinite(reply.reward):
            raise self._end(EndReason.PROTOCOL, "a reward that is not finite")
        return StepResult(reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info_empty)

    def solve(self, seed: int) -> list[str]:
        """Witness jails only: a new object, reset, solution(); the actions."""
        self._await_made()
        return self._ask("solve", seed, self._limits.reset_s + self._limits.step_s, frames.Solved).actions

    def close(self) -> None:
        """See base.Session."""
        if not self._closed:
            self._release(misbehaved=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- one request -----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._closed:
            raise ValueError("the session is closed")

    def _await_made(self) -> None:
        self._check_open()
        if not self._made:
            self._expect(self._number, self._limits.make_s, frames.Made, "making the environment")
            self._made = True

    def _ask(self, operation: str, argument: int | str, limit_s: float, kind: type[ReplyT]) -> ReplyT:
        self._check_open()
        identity = int.from_bytes(os.urandom(6), "big")
        frame = frames.encode(operation, identity, argument)
        if len(frame) > self._limits.max_frame_bytes:
            raise self._end(EndReason.BUDGET, f"an action of {len(frame)} bytes, a frame may have {self._limits.max_frame_bytes}")
        try:
            self._channel.check_quiet()
            self._cpu_began = child_cpu_s(self._pid)
            self._channel.send(frame, SEND_S)
        except frames.ViolationError as error:
            raise self._end(EndReason.PROTOCOL, str(error)) from None
        except TimeoutError:
            raise self._end(EndReason.TIMEOUT, f"{operation}: the jail does not read") from None
        except frames.ClosedError:
            raise self._finish(self._post_mortem()) from None
        reply = self._expect(identity, limit_s, kind, operation)
        if self._on_first is not None:
            told, self._on_first = self._on_first, None
            told()
        return reply

    def _expect(self, identity: int, limit_s: float, kind: type[ReplyT], what: str) -> ReplyT:
        try:
            reply = frames.decode(self._receive(limit_s, what))
            self._channel.check_behind()
        except frames.ViolationError as error:
            raise self._end(EndReason.PROTOCOL, f"{what}: {error}") from None
        except frames.ClosedError:
            raise self._finish(self._post_mortem()) from None
        if reply.id != identity:
            raise self._end(EndReason.PROTOCOL, f"{what}: a reply to another request")
        if isinstance(reply, frames.Failed):
            raise self._fail(reply)
        if not isinstance(reply, kind):
            raise self._end(EndReason.PROTOCOL, f"{what}: a reply of another kind")
        return reply

    def _receive(self, limit_s: float, what: str) -> bytes:
        """Waits for a frame. `limit_s` of CPU time ends as cpu, that much wall time as budget where the child sleeps then: nobody
        else can have sent it to sleep. A child that was stopped, or is starved of a processor, ends as timeout."""
        began, cpu_began = time.monotonic(), self._cpu_began
        wait_s = limit_s
        while True:
            with suppress(TimeoutError):
                return self._channel.receive(wait_s)
            used_s = child_cpu_s(self._pid) - cpu_began
            waited_s = time.monotonic() - began
            idle = used_s < BUSY_SHARE * max(waited_s, 1.0)
            state = child_state(self._pid) or (STOPPED if idle else RUNNING)
            with suppress(TimeoutError):
                # asleep because it has replied meanwhile
                return self._channel.receive(0)
            if used_s >= limit_s - CPU_TICK_S:
                raise self._end(EndReason.CPU, f"{what}: {limit_s:g} s of CPU time")
            if state == ASLEEP:
                raise self._end(EndReason.BUDGET, f"{what}: asleep after {limit_s:g} s, where there is nothing to wait for")
            if state == STOPPED or waited_s > limit_s * self._limits.patience:
                raise self._end(EndReason.TIMEOUT, f"{what}: no reply in {waited_s:.1f} s, CPU {used_s:.2f} s")
            wait_s = max(CPU_TICK_S, limit_s - used_s)

    def _fail(self, reply: frames.Failed) -> SessionEnd:
        if reply.kind == "memory":
            return self._end(EndReason.OOM, reply.text)
        if reply.kind == "size":
            return self._end(EndReason.PROTOCOL, reply.text)
        if reply.kind not in _KINDS:
            return self._end(EndReason.PROTOCOL, f"a failure of unknown kind: {reply.kind}")
        return self._end(EndReason.ENV_ERROR, reply.text, _KINDS[reply.kind])

    # --- ends ------------------------------------------------------------------------------------------------------------

    def _end(self, reason: EndReason, evidence: str, kind: ErrorKind = ErrorKind.NONE) -> SessionEnd:
        return self._finish(SessionEnd(reason, escape_line(evidence, 400), kind))

    def _finish(self, end: SessionEnd) -> SessionEnd:
        self._ended = end
        if not self._closed:
            self._release(misbehaved=True)
        return end

    def _post_mortem(self) -> SessionEnd:
        """What a closed channel means, by the child's exit status and the cgroup's counters."""
        gone = self._pidfd_gone(LINGER_S)
        self._kill(gone)
        found = self.jail.status(self._number)
        if found is None:
            return self.jail.explain_death()
        code, cpu_s = os.waitstatus_to_exitcode(found[0]), found[1]
        if self.jail.oom_kills() > self._oom_before and code == -signal.SIGKILL:
            return SessionEnd(EndReason.OOM, "the jail's memory limit")
        if code == -signal.SIGSYS:
            return SessionEnd(EndReason.SECCOMP, "a forbidden system call")
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_s >= self._limits.cpu_s):
            return SessionEnd(EndReason.CPU, f"{self._limits.cpu_s} s of CPU time for the session")
        if code == -signal.SIGKILL and not gone:
            return SessionEnd(EndReason.PROTOCOL, "the environment's process closed its channel and went on")
        if code == -signal.SIGKILL:
            return SessionEnd(EndReason.DIED, "the environment's process was killed from outside")
        told = f"signal {-code}" if code < 0 else f"code {code}"
        return SessionEnd(EndReason.ENV_ERROR, f"the environment's process left with {told}", ErrorKind.EXITED)

    def _pidfd_gone(self, wait_s: float) -> bool:
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(int(wait_s * 1000)))

    def _kill(self, gone: bool) -> None:
        if not gone:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._pidfd_gone(KILL_S)

    def _release(self, misbehaved: bool) -> None:
        self._closed = True
        self._channel.close()
        if self._pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1
        self._on_close(self, misbehaved)


def child_state(pid: int) -> str:
    """What a process does (proc(5)): RUNNING computes, or waits for a processor or a page; "" where the kernel does not tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return ASLEEP if state in "SI" else STOPPED if state in "Tt" else RUNNING
