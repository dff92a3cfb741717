"""What every record shares: the common fields, references into the log, token spans and their packing."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A value inside a record. Fields only ever get added, with defaults."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a topic.

    `event_id` is derived (schemas.ids), so that a redelivered input yields an equal record; `causation_id` is the event
    that led to this one. `tries` counts tries after an infrastructure failure and `created_at` is told to people: neither
    ever decides anything.
    """

    run_id: str
    event_id: str
    causation_id: str = ""
    schema_version: int = 1
    tries: int = 0
    created_at: float = 0.0  # seconds since the epoch, by the writer's clock


class Reference(Part, frozen=True, kw_only=True):
    """Where a record stands in the log."""

    topic: str
    partition: int
    offset: int
    id: str  # event_id of the record there


class SamplingSettings(Part, frozen=True, kw_only=True):
    """The distribution that tokens are drawn from; the trainer computes under the same one."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_tokens: int = 256  # of one completion


class Span(Part, frozen=True, kw_only=True):
    """A run of sampled tokens [start, end) in a token sequence, and who sampled them."""

    start: int
    end: int
    policy_version: int
    policy_digest: str
    settings: SamplingSettings


class VersionSpan(Part, frozen=True, kw_only=True):
    """The policy versions that sampled a text, as its spans tell them; -1 where nothing was sampled or a record is older."""

    oldest: int = -1
    newest: int = -1


def version_span(spans: Sequence[Span]) -> VersionSpan:
    """From the oldest to the newest version among the spans."""
    versions = [span.policy_version for span in spans]
    return VersionSpan(oldest=min(versions), newest=max(versions)) if versions else VersionSpan()


def pack_ints(values: Sequence[int]) -> bytes:
    """Token ids as little-endian int32 bytes."""
    return struct.pack(f"<{len(values)}i", *values)


def unpack_ints(data: bytes) -> list[int]:
    """Inverse of `pack_ints`."""
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def pack_floats(values: Sequence[float]) -> bytes:
    """Log-probabilities as little-endian float32 bytes."""
    return struct.pack(f"<{len(values)}f", *values)


def unpack_floats(data: bytes) -> list[float]:
    """Inverse of `pack_floats`."""
    return list(struct.unpack(f"<{len(data) // 4}f", data))
