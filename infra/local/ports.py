"""Loopback ports: a free one, and whether a given one is taken. Called by the local services."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from schemas.errors import PortInUseError

LOOPBACK = "127.0.0.1"
LOWEST = 15_000
TRIES = 200


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that were free at the time of the call (another process may take one after it).

    Where there is room they lie below the ports that the kernel gives to outgoing connections: while a service is down its own
    clients, which try to reach it all the time, could otherwise be given its port, and it could not come back.
    """
    held: list[socket.socket] = []
    below = _lowest_outgoing()
    try:
        held.extend(_bound(below) for _ in range(count))
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


def _bound(below: int) -> socket.socket:
    """A socket bound to a free port in LOWEST .. `below`, or to any where none is found there."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    for _ in range(TRIES if below > LOWEST else 0):
        with contextlib.suppress(OSError):
            sock.bind((LOOPBACK, random.randrange(LOWEST, below)))
            return sock
    sock.bind((LOOPBACK, 0))
    return sock


def _lowest_outgoing() -> int:
    """The lowest port of outgoing connections; 0 where the system does not tell."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


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
