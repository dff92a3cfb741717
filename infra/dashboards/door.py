"""Who may ask the local page: only a browser that was pointed at it by its own address.

Covered: a name of somebody else's that resolves to this machine (its Host differs), pages of other origins that ask with scripts
(their Origin differs; and no answer carries a CORS permission), framing, scripts and styles that are not the project's own files,
sniffed content types, methods other than GET and HEAD. Not covered: other users of this machine, who can open a loopback port as
well as we can. Every answer carries HEADERS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


class Door:
    """ASGI middleware: refuses what it must, and adds the headers to everything."""

    def __init__(self, inner: Application, port: int) -> None:
        self._inner = inner
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        status, why = self._refusal(scope)
        if status:
            length = (b"content-length", str(len(why)).encode())
            headers = [*HEADERS, (b"content-type", b"text/plain; charset=utf-8"), length]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": why})
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in HEADERS}
                message["headers"] = [*[one for one in message.get("headers", ()) if one[0] not in own], *HEADERS]
            await send(message)

        await self._inner(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, bytes]:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, b"This page answers only to its own loopback address."
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if any(origin.removeprefix(b"http://") not in self._hosts for origin in origins):
            return 403, b"This page answers no other page's scripts."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, b"There is nothing to change here."
        return 0, b""
