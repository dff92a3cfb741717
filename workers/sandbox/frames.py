"""The wire between host and jail, host side: frames of four length bytes and JSON, decoded strictly.

In: bytes from a jail, which may be forged. Out: one of the reply types, or ViolationError. Covered: length bound before a body is
read, valid UTF-8, no NaN or infinity, no surrogates, no unknown, missing or extra fields, built-in types (a bool is no
number), no second frame behind a reply. Replies are JSON arrays, so there are no keys to duplicate. Not covered: whether what
a reply claims is true; nothing can tell.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Final

import msgspec

HEADER: Final = struct.Struct(">I")
CHUNK: Final = 1 << 17


class ViolationError(Exception):
    """The jail sent what no honest runner sends."""


class ClosedError(Exception):
    """The jail's end of the channel is closed."""


class Hello(msgspec.Struct, array_like=True, tag="hello", forbid_unknown_fields=True, frozen=True):
    """A child lives; sent before any environment code ran."""

    id: int


class Made(msgspec.Struct, array_like=True, tag="made", forbid_unknown_fields=True, frozen=True):
    """Module run, class found, object constructed."""

    id: int


class Began(msgspec.Struct, array_like=True, tag="began", forbid_unknown_fields=True, frozen=True):
    """Reply to reset."""

    id: int
    observation: str
    info_empty: bool


class Stepped(msgspec.Struct, array_like=True, tag="stepped", forbid_unknown_fields=True, frozen=True):
    """Reply to step."""

    id: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info_empty: bool


class Solved(msgspec.Struct, array_like=True, tag="solved", forbid_unknown_fields=True, frozen=True):
    """Reply to solve: the witness's actions for one seed."""

    id: int
    actions: list[str]


class Failed(msgspec.Struct, array_like=True, tag="failed", forbid_unknown_fields=True, frozen=True):
    """The environment raised, returned what the contract does not allow, or ran out of memory."""

    id: int
    kind: str
    text: str


Reply = Hello | Made | Began | Stepped | Solved | Failed

_REPLIES: Final = msgspec.json.Decoder(Reply, strict=True)
_ENCODER: Final = msgspec.json.Encoder()


def encode(*parts: object) -> bytes:
    """A frame for the jail. Raises UnicodeEncodeError for text with surrogates."""
    body = _ENCODER.encode(parts)
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> Reply:
    """A frame's body as a reply. Raises ViolationError and nothing else, whatever the bytes are."""
    try:
        return _REPLIES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ViolationError(f"not a reply: {error}") from error


class Channel:
    """One end of a stream socket that carries frames. Keeps what it read across a timeout, so that a wait can go on."""

    def __init__(self, sock: socket.socket, max_frame_bytes: int) -> None:
        self.socket = sock
        # Python's own timeouts would poll before each call, also before one that must not wait
        sock.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def send(self, frame: bytes, timeout_s: float) -> None:
        """Blocks up to `timeout_s`. Raises TimeoutError, ClosedError."""
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                if not self._writable.poll(timeout_s * 1000):
                    raise TimeoutError from None
            except OSError as error:
                raise ClosedError from error

    def receive(self, timeout_s: float) -> bytes:
        """The next frame's body. Blocks up to `timeout_s`, however many pieces come. Raises TimeoutError, ClosedError,
        ViolationError."""
        deadline = time.monotonic() + timeout_s
        late = False
        while True:
            if len(self._buffer) >= HEADER.size:
                (size,) = HEADER.unpack_from(self._buffer)
                if size > self._max_frame_bytes:
                    raise ViolationError(f"a frame of {size} bytes, allowed are {self._max_frame_bytes}")
                end = HEADER.size + size
                if len(self._buffer) >= end:
                    body = bytes(self._buffer[HEADER.size : end])
                    del self._buffer[:end]
                    return body
            if late:
                raise TimeoutError
            self.wait_readable(max(0.0, deadline - time.monotonic()))
            late = time.monotonic() > deadline
            try:
                chunk = self.socket.recv(CHUNK)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ClosedError from error
            if not chunk:
                raise ClosedError
            self._buffer += chunk

    def wait_readable(self, timeout_s: float) -> None:
        """Blocks until something can be read. Raises TimeoutError."""
        if not self._readable.poll(timeout_s * 1000):
            raise TimeoutError

    def check_behind(self) -> None:
        """Raises ViolationError where more than the reply came with it; what comes later is seen before the next request."""
        if self._buffer:
            raise ViolationError(f"{len(self._buffer)} bytes behind a reply")

    def check_quiet(self) -> None:
        """Raises ViolationError where the jail sent more than it was asked for."""
        self.check_behind()
        try:
            chunk = self.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return
        if chunk:
            raise ViolationError("a frame that nobody asked for")

    def close(self) -> None:
        """Closes the host's end."""
        self.socket.close()
