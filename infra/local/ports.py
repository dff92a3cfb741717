"""Loopback ports: a free one, and whether a given one is taken. Called by the local services."""

from __future__ import annotations

import socket

from schemas.errors import PortInUseError

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that were free at the time of the call (another process may take one after it)."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for sock in held:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


def require_free(port: int, owner: str) -> None:
    """Raises PortInUseError when something listens on `port` of the loopback address; `owner` names who wants it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT after a restart is free
        try:
            sock.bind((LOOPBACK, port))
        except OSError as problem:
            raise PortInUseError(
                f"port {port} on {LOOPBACK} is taken, the {owner} can't listen there ({problem.strerror})",
                "End the other program or name another port",
            ) from problem


def listens(port: int, timeout_s: float = 1.0) -> bool:
    """Whether a connection to `port` on the loopback address is accepted within `timeout_s`."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s):
            return True
    except OSError:
        return False
