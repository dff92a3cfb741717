"""Whether the broker still answers, for loops whose clients wait for it in silence: kafka-python and Faust retry for ever.

In: BrokerSettings. Called through infra.kafka by workers, trainer and stream stages, in the loop that would otherwise wait.
`check` looks at most every LOOK_S and blocks for PROBE_S where the broker is gone; it raises BrokerError once that has lasted
settings.away_s. What is asked is ApiVersions, the question that Kafka answers before any other; with TLS, the handshake.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable

from infra.clock import Clock, SystemClock
from infra.telemetry import get_logger
from schemas.errors import BrokerError
from schemas.process import BrokerSettings

LOOK_S = 2.0
PROBE_S = 2.0
API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)  # key, version, correlation, no client id
log = get_logger("infra.kafka")


class BrokerWatch:
    """Notes since when the broker is away."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, probe: Callable[[BrokerSettings], str] | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._probe = probe or find_silence
        self._look_at = 0.0
        self._away_since: float | None = None
        self.cause = ""

    @property
    def away(self) -> bool:
        """Whether the broker did not answer when it was asked last."""
        return self._away_since is not None

    def check(self) -> None:
        """Asks the broker where it is time to; BrokerError once it was away for settings.away_s."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self.cause = self._probe(self._settings)
        self._look_at = self._clock.monotonic() + LOOK_S
        if not self.cause:
            if self._away_since is not None:
                log.info("the broker answers again", away_s=round(now - self._away_since, 1))
            self._away_since = None
            return
        if self._away_since is None:
            self._away_since = now
            log.warning("the broker is away, waiting for it", cause=self.cause, limit_s=self._settings.away_s)
        if now - self._away_since >= self._settings.away_s:
            raise BrokerError(
                f"broker {self._settings.address} has been away for {self._settings.away_s:.0f} s ({self.cause})",
                "Start it again, then this command: nothing is lost; away_s in the broker's file is the limit",
            )


def find_silence(settings: BrokerSettings) -> str:
    """Why no address of the broker answers; "" where one does."""
    causes = []
    for address in settings.address.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S) as link:
                _ask(link, host, settings)
            return ""
        except OSError as problem:
            causes.append(f"{address}: {problem.strerror or problem or type(problem).__name__}")
    return "; ".join(causes)


def _ask(link: socket.socket, host: str, settings: BrokerSettings) -> None:
    """Raises OSError where nobody answers."""
    if "SSL" in settings.security_protocol.split("_"):
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        with context.wrap_socket(link, server_hostname=host):
            return
    link.sendall(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
    if not link.recv(1):
        raise ConnectionResetError("the connection was closed without an answer")
