"""One OpenAI-compatible server over HTTP: JSON in, JSON out, with a key, retries and deadlines.

In: an address, a key, bodies. Out: the answers as dicts, in the order of the bodies. Called by samplers.openai. Blocks up to its
deadline. Raises ServerError (out of reach after the last try, refused, or no answer that can be read) and SamplingInterrupted.
The key goes to this one server: redirects are not followed, no proxy is used, plain http is for loopback, and what the server
says is shown in errors without the key. What is busy or ill (408, 409, 425, 429, 5xx, a broken connection, a timeout, no JSON) is
asked again after a pause that doubles, or that the server names (Retry-After); what is refused is not.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from infra.plaintext import escape_line
from schemas.errors import ServerError, SettingsError
from schemas.settings import ExternalSettings
from workers.samplers.base import SamplingInterrupted

PASSING = frozenset({408, 409, 425, 429, *range(500, 600)})
MOST_BYTES = 64 * 1024**2  # of one answer
SHOWN = 300  # characters of an answer in an error
POLL_S = 0.1
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
HIDDEN = "(key)"
LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})


class _Passing(Exception):  # noqa: N818  # no error yet: what may be otherwise at the next try
    def __init__(self, cause: str, pause_s: float | None = None) -> None:
        super().__init__(cause)
        self.pause_s = pause_s


class Endpoint:
    """A server's address up to the version, such as https://api.example.com/v1."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        at_once: int = 8,
        tries: int = 5,
        timeout_s: float = 600.0,
        deadline_s: float = 1500.0,
        first_pause_s: float = FIRST_PAUSE_S,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises SettingsError for an address that can't be used or that would show the key to others."""
        check_address(url, secret=bool(key))
        self.url = url.rstrip("/")
        self._key = key
        self._at_once, self._tries = at_once, tries
        self._timeout_s, self._deadline_s, self._first_pause_s = timeout_s, deadline_s, first_pause_s
        self._interrupted = interrupted

    def get(self, path: str) -> dict[str, Any]:
        """One GET."""
        return self._run("GET", path, [None])[0]

    def post(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """One POST a body, several at once; the answers in their order. The first that fails ends all."""
        return self._run("POST", path, bodies)

    def refuse(self, path: str, cause: str, fix: str) -> ServerError:
        """The error of an answer that can't be used, without the key."""
        return ServerError(f"{self.url}{path}: {self._shown(cause)}", fix)

    def _run(self, method: str, path: str, bodies: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
        return asyncio.run(self._ask_all(method, path, bodies))

    async def _ask_all(self, method: str, path: str, bodies: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
        end, gate = time.monotonic() + self._deadline_s, asyncio.Semaphore(self._at_once)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with aiohttp.ClientSession(headers=headers, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:

            async def ask(body: Mapping[str, Any] | None) -> dict[str, Any]:
                async with gate:
                    return await self._ask(session, method, path, body, end)

            tasks = [asyncio.create_task(ask(body)) for body in bodies]
            try:
                everything = asyncio.gather(*tasks)
                while not (await asyncio.wait([everything], timeout=POLL_S))[0]:
                    if self._interrupted():
                        raise SamplingInterrupted
                return list(everything.result())
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Mapping[str, Any] | None, end: float
    ) -> dict[str, Any]:
        """One request with its tries."""
        cause, tried = "its turn did not come", 0
        while tried < self._tries and (left := end - time.monotonic()) > 0:
            tried += 1
            try:
                return await self._once(session, method, path, body, min(self._timeout_s, left))
            except _Passing as problem:
                cause = str(problem)
                pause = self._first_pause_s * 2 ** (tried - 1) if problem.pause_s is None else problem.pause_s
                pause = min(pause, LONGEST_PAUSE_S)
                if tried < self._tries and time.monotonic() + pause < end:
                    await asyncio.sleep(pause)
                else:
                    break
        raise self.refuse(
            path,
            f"no answer in {tried} tries of at most {self._tries} within {self._deadline_s:g} s: {cause}",
            "Check that the server runs and has room, or raise external.tries, external.timeout_s or external.deadline_s",
        )

    async def _once(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        try:
            async with session.request(
                method, self.url + path, json=body, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=timeout_s)
            ) as answer:
                status, told = answer.status, answer.headers.get("Retry-After")
                data = await self._read(answer, path)
        except TimeoutError:
            raise _Passing(f"nothing within {timeout_s:.3g} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise _Passing(str(problem) or type(problem).__name__) from problem
        text = data.decode("utf-8", "replace")
        if status in PASSING:
            raise _Passing(f"it answered {status}: {text[:SHOWN]}", _pause(told))
        if status != 200:
            raise self.refuse(path, f"it refused with {status}: {text[:SHOWN]}", _fix_of(status))
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise _Passing(f"it answered no JSON object: {text[:SHOWN]}")
        return found

    async def _read(self, answer: aiohttp.ClientResponse, path: str) -> bytes:
        data = bytearray()
        async for chunk in answer.content.iter_chunked(65_536):
            data += chunk
            if len(data) > MOST_BYTES:
                raise self.refuse(path, f"its answer is longer than {MOST_BYTES // 2**20} MiB", "Use another server")
        return bytes(data)

    def _shown(self, text: str) -> str:
        return escape_line(text.replace(self._key, HIDDEN) if self._key else text, 2 * SHOWN)


def open_endpoint(settings: ExternalSettings, interrupted: Callable[[], bool] = lambda: False) -> Endpoint:
    """The server of a recipe's `external`, with its key. Raises SettingsError."""
    return Endpoint(
        settings.url,
        read_key(settings),
        at_once=settings.at_once,
        tries=settings.tries,
        timeout_s=settings.timeout_s,
        deadline_s=settings.deadline_s,
        interrupted=interrupted,
    )


def read_key(settings: ExternalSettings) -> str:
    """The key from its file or variable, "" where neither is named. Raises SettingsError, which never shows it."""
    if settings.key_file:
        place = f"external.key_file: {settings.key_file}"
        try:
            key = Path(settings.key_file).expanduser().read_text(encoding="utf-8").split("\n", 1)[0].strip()
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or "it is no text"
            raise SettingsError(f"{place} can't be read ({why})", "Name a file whose first line is the key") from problem
    elif settings.key_variable:
        place = f"external.key_variable: {settings.key_variable}"
        key = os.environ.get(settings.key_variable, "").strip()
    else:
        return ""
    if not key:
        raise SettingsError(f"{place} holds no key", "Put the server's key there")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(f"{place} holds letters that no key has", "Put the key there alone, on one line")
    return key


def check_address(url: str, *, secret: bool) -> None:
    """Raises SettingsError for what is no address of a server, or where a key would travel in plain sight."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as problem:
        raise SettingsError(f"external.url {url!r} is no address ({problem})", "Such as https://api.example.com/v1") from problem
    if parts.username is not None or parts.password is not None:
        raise SettingsError("external.url holds a user or password", "Name the key's file with external.key_file")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise SettingsError(f"external.url {url!r} is no address of a server", "Such as https://api.example.com/v1")
    if secret and parts.scheme == "http" and not _is_loopback(host):
        raise SettingsError(
            f"external.url {url!r} would send the key in plain text to another machine", "Use https, or a tunnel to loopback"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOCAL_NAMES


def _pause(told: str | None) -> float | None:
    """Seconds of a Retry-After; None for a date or nothing."""
    try:
        seconds = float(told) if told is not None else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < float("inf") else None


def _fix_of(status: int) -> str:
    if status in (401, 403):
        return "Check the key in external.key_file or external.key_variable"
    if status == 404:
        return "Check external.url (up to the version, such as .../v1) and external.model"
    if 300 <= status < 400:
        return "Name the address that it points to in external.url: redirects are not followed, since the key would go along"
    return "Check external.model, external.parameters and external.limit_word against what the server takes"
