"""Records to bytes and back: msgpack, strict about what is read, open to fields that were added later."""

from __future__ import annotations

import functools

import msgspec

from schemas.common import Record
from schemas.errors import RecordError
from schemas.topics import BY_RECORD, BY_WIRE, MAX_MESSAGE_BYTES, Topic

SCHEMA_VERSIONS = frozenset({1})
_encoder = msgspec.msgpack.Encoder()


def encode(record: Record, limit_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The record as msgpack. Raises RecordError where it is larger than the limit: what a message may hold, 8 MiB."""
    if type(record) not in BY_RECORD:
        raise RecordError(f"{type(record).__name__} has no topic")
    data = _encoder.encode(record)
    if len(data) > limit_bytes:
        raise too_large(record, len(data), limit_bytes)
    return data


def too_large(record: Record, size_bytes: int, limit_bytes: int) -> RecordError:
    """The error of a record beyond the limit: of one message, or of what may stand apart by claim check (infra.claims)."""
    name = f"{type(record).__name__} {record.event_id} has {size_bytes} bytes"
    smaller = "Make the recipe's units smaller (more design.units, rollout.units)"
    if limit_bytes > MAX_MESSAGE_BYTES:
        return RecordError(f"{name}, at most {limit_bytes} can stand apart by claim check", smaller)
    elsewhere = f"{smaller}, or name a place with `claims` in the broker's TOML file"
    return RecordError(f"{name}, at most {limit_bytes} go into one message", elsewhere)


@functools.cache
def _decoder(record_type: type[Record]) -> msgspec.msgpack.Decoder[Record]:
    return msgspec.msgpack.Decoder(record_type)


def decode(topic: Topic | str, data: bytes) -> Record:
    """The record in `data`. Raises RecordError for bytes that are no record of that topic or of an unknown version."""
    known = BY_WIRE.get(topic) if isinstance(topic, str) else topic
    if known is None:
        raise RecordError(f"topic {topic!r} is not one of ours")
    try:
        record = _decoder(known.record).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{len(data)} bytes of {known.wire} are no {known.record.__name__}: {error}") from error
    if record.schema_version not in SCHEMA_VERSIONS:
        raise RecordError(f"{known.wire} holds schema version {record.schema_version}, this code knows 1")
    return record
