"""The bytes of ClickHouse's HTTP interface: compression both ways, and where a statement ends and its data begins.

Called by the store server.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from typing import Any

SMALLEST_COMPRESSED = 4096  # bytes; below it compression costs more than the loopback saves

# Strings, quoted names, comments, brackets, words and the rest of an INSERT's head.
_TOKEN = re.compile(
    rb"""'(?:[^'\\]|\\.|'')*' | `(?:[^`\\]|\\.)*` | "(?:[^"\\]|\\.)*" | --[^\n]*\n? | /\*.*?\*/ | [()] | \w+ | \s+ | .""",
    re.VERBOSE | re.DOTALL,
)
_TRAILING_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)


def decompress(data: bytes, encoding: str) -> bytes:
    """The request body as sent; raises ValueError for an unknown encoding or broken data."""
    try:
        match encoding:
            case "" | "identity":
                return data
            case "lz4":
                import lz4.frame  # type: ignore[import-untyped]  # ships no types

                return _all_frames(data, lz4.frame.LZ4FrameDecompressor)
            case "zstd":
                import zstandard

                return _all_frames(data, zstandard.ZstdDecompressor().decompressobj)
            case "gzip":
                return gzip.decompress(data)
            case "deflate":
                return zlib.decompress(data)
    except (RuntimeError, OSError, EOFError, zlib.error) as problem:
        raise ValueError(f"the {encoding} body can't be decompressed: {problem}") from problem
    except Exception as problem:
        if type(problem).__module__.startswith("zstandard"):
            raise ValueError(f"the {encoding} body can't be decompressed: {problem}") from problem
        raise
    raise ValueError(f"Content-Encoding {encoding!r} is not known")


def _all_frames(data: bytes, new: Callable[[], Any]) -> bytes:
    """Every frame of the body: clients compress each block of an insert into one of its own. Raises ValueError."""
    found = bytearray()
    while data:
        frame = new()
        found += frame.decompress(data)
        if not frame.eof:
            raise ValueError("the compressed body is cut off")
        data = frame.unused_data or b""
    return bytes(found)


def compress(data: bytes, accepted: str) -> tuple[bytes, str]:
    """The answer's body and its encoding: the first accepted one of lz4, zstd and gzip, or as it is."""
    names = [name.split(";")[0].strip() for name in accepted.split(",")]
    if len(data) < SMALLEST_COMPRESSED:
        return data, ""
    if "lz4" in names:
        import lz4.frame

        return bytes(lz4.frame.compress(data)), "lz4"
    if "zstd" in names:
        import zstandard

        return zstandard.ZstdCompressor(level=1).compress(data), "zstd"
    if "gzip" in names:
        return gzip.compress(data, compresslevel=1), "gzip"
    return data, ""


def split_insert(statement: bytes) -> tuple[str, str, bytes] | None:
    """(head without FORMAT, format, data) of an INSERT whose data follows its FORMAT clause; None for anything else."""
    words = 0
    depth = 0
    position = 0
    while match := _TOKEN.match(statement, position):
        token, start, position = match[0], match.start(), match.end()
        if token in (b"(", b")"):
            depth += 1 if token == b"(" else -1
        if depth or not (token[:1].isalpha() or token[:1] == b"_"):
            continue
        words += 1
        word = token.upper()
        if words == 1 and word != b"INSERT":
            return None
        if word in (b"SELECT", b"VALUES", b"WITH", b"INFILE"):
            return None
        if word == b"FORMAT":
            return _cut(statement, start, position)
    return None


def output_format(statement: str, default: str) -> str:
    """The format that the statement's own FORMAT clause names, or `default`."""
    match = _TRAILING_FORMAT.search(statement)
    return match[1] if match else default


def _cut(statement: bytes, start: int, position: int) -> tuple[str, str, bytes] | None:
    name = re.compile(rb"\s+(\w+)[ \t]*(?:\r?\n|;|$)?").match(statement, position)
    if name is None:
        return None
    return statement[:start].decode(), name[1].decode(), statement[name.end() :]
