"""Who may ask the embedded store. What a read-only question may be: infra/readonly.py.

Covered: callers without the token; web pages (a browser sends Origin, and a rebound name sends a foreign Host).
Not covered: another process of the same user, which can read the token file. Called by the store server.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping

AUTHENTICATION_FAILED = 516
READONLY = 164


def host_refused(headers: Mapping[str, str], port: int) -> str:
    """Why the request's Host or Origin is refused, or ""."""
    own = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    host = headers.get("host", "")
    if host not in own:
        return f"Host {host!r} is not this store's address"
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{name}" for name in own}:
        return f"Origin {origin!r} may not ask this store"
    return ""


def token_given(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The password that the request carries, as ClickHouse's clients send it."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    if scheme.lower() == "bearer":
        return value
    return headers.get("x-clickhouse-key") or query.get("password", "")


def token_fits(given: str, token: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())
