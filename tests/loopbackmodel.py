"""A real HTTP server on loopback that answers as a language model's server does, or fails as such servers fail, as it is told.

It is no fake of vLLM: what it says is scripted, answer by answer. `make test-vllm` holds the same client against vLLM's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
STOP_S = 10.0


class LoopbackModel:
    """Answers the n-th request with the n-th of `answers`, the last of them for ever; notes what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers: Sequence[Answer] = answers
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []  # path, headers, body
        self.at_once = self.most_at_once = 0
        self.left = threading.Event()  # a client went away before it was answered
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="loopback-model", daemon=True)

    def __enter__(self) -> LoopbackModel:
        self._thread.start()
        assert self._ready.wait(STOP_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(STOP_S)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = runner.addresses[0][1]
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        number = len(self.asked)
        self.asked.append((request.path, dict(request.headers), body))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.answers[min(number, len(self.answers) - 1)](request, body)
        except asyncio.CancelledError:
            self.left.set()
            raise
        finally:
            self.at_once -= 1


def says(text: str | None, finish: str = "stop", after_s: float = 0.0) -> Answer:
    """A chat completion."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(after_s)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    return answer


def echoes(after_s: Callable[[str], float] = lambda prompt: 0.0) -> Answer:
    """A chat completion that repeats the prompt."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        prompt = body["messages"][0]["content"]
        await asyncio.sleep(after_s(prompt))
        return await says(prompt)(request, body)

    return answer


def together(barrier: asyncio.Barrier, answer: Answer) -> Answer:
    """The answer, once as many requests as the barrier holds are under way."""

    async def held(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await barrier.wait()
        return await answer(request, body)

    return held


def fails(status: int, text: str = "", **headers: str) -> Answer:
    """A status with a text, and headers whose underscores stand for hyphens."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, headers=told)

    return answer


def holds(value: object) -> Answer:
    """Any JSON."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(value)

    return answer


async def hangs_up(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The connection is cut without an answer."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(STOP_S)
    return web.Response()


async def is_silent(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Nothing comes, for longer than any test waits."""
    await asyncio.sleep(600)
    return web.Response()


async def trickles(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """An answer that never ends, a byte at a time."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)
