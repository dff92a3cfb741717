"""The jail's end of the wire: frames of four length bytes and JSON, read and written with builtin modules. See frames.py."""

from __future__ import annotations

import _json
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FRAME = 1 << 20
CHUNK = 4096


class _ScannerContext:
    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


scan: Any = _json.make_scanner(_ScannerContext())  # type: ignore[arg-type] # what it reads, and no more
_quote = _json.encode_basestring


def encode(value: object) -> str:
    """JSON of str, bool, int, float and lists of them."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is str:
        return _quote(value)
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is float:
        return float.__repr__(value)
    assert isinstance(value, (list, tuple))
    return "[" + ",".join([encode(item) for item in value]) + "]"


def read_exactly(descriptor: int, size: int, buffer: bytes = b"") -> bytes | None:
    """`size` bytes, or None at the end of the stream."""
    while len(buffer) < size:
        chunk = posix.read(descriptor, size - len(buffer))
        if not chunk:
            return None
        buffer += chunk
    return buffer


def read_frame(descriptor: int) -> Any:
    """The next frame, decoded, or None where the host has closed. The host sends one and waits: nothing stands behind it."""
    begun = posix.read(descriptor, CHUNK)
    buffer = read_exactly(descriptor, 4, begun) if begun else None
    if buffer is None:
        return None
    size = int.from_bytes(buffer[:4], "big")
    if size > MAX_FRAME:
        return None
    frame = read_exactly(descriptor, 4 + size, buffer)
    return None if frame is None else scan(frame[4:].decode(), 0)[0]


def make_frame(*parts: object) -> bytes:
    """A reply as it goes over the wire."""
    body = encode(parts).encode()
    return len(body).to_bytes(4, "big") + body


def send_frame(descriptor: int, *parts: object) -> None:
    """Sends one reply."""
    frame = make_frame(*parts)
    sent = posix.write(descriptor, frame)
    while sent < len(frame):
        sent += posix.write(descriptor, frame[sent:])
