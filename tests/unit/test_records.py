"""The stored example of every record, decoded and re-encoded for ever. `python test_records.py` adds what is missing."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codec import decode, encode
from schemas.common import Part, Record
from schemas.topics import Topic

EXAMPLES = Path(__file__).resolve().parents[2] / "schemas" / "examples"


def fill(kind: Any, name: str) -> Any:
    """A value of the type that is no default: every field of an example is set."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return fill(next(one for one in arguments if one is not type(None)), name)
    if origin is list:
        return [fill(arguments[0], name)]
    if origin is dict:
        return {"key": fill(arguments[1], name)}
    if isinstance(kind, type) and issubclass(kind, Part | Record):
        hints = typing.get_type_hints(kind)
        values: dict[str, Any] = {field.name: fill(hints[field.name], field.name) for field in msgspec.structs.fields(kind)}
        return kind(**({**values, "schema_version": 1} if "schema_version" in values else values))
    return {str: f"{name} ✓", int: 3, float: 0.5, bool: True, bytes: b"\x01\x00\x00\x80"}[kind]


def path_of(topic: Topic) -> Path:
    return EXAMPLES / f"{topic.record.__name__}.msgpack"


def holds(value: Any, stored: Any) -> bool:
    """Whether `value` has everything that was stored; records and their parts may have gained fields since."""
    if isinstance(stored, dict) and isinstance(value, dict):
        return all(name in value and holds(value[name], stored[name]) for name in stored)
    if isinstance(stored, list) and isinstance(value, list):
        return len(value) == len(stored) and all(map(holds, value, stored))
    return bool(value == stored)


@pytest.mark.parametrize("topic", list(Topic), ids=lambda topic: topic.record.__name__)
def test_stored_example_decodes_and_keeps_every_field(topic: Topic) -> None:
    stored = path_of(topic).read_bytes()
    record = decode(topic, stored)
    assert type(record) is topic.record
    again = msgspec.msgpack.decode(encode(record))
    raw = msgspec.msgpack.decode(stored)
    assert len(raw) >= 6
    assert holds(again, raw)
    assert decode(topic, encode(record)) == record


@pytest.mark.parametrize("topic", list(Topic), ids=lambda topic: topic.record.__name__)
def test_every_field_of_a_record_round_trips(topic: Topic) -> None:
    record = fill(topic.record, "record")
    assert decode(topic, encode(record)) == record


def test_examples_are_of_known_records_only() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.msgpack")} == {topic.record.__name__ for topic in Topic}


if __name__ == "__main__":
    for each in Topic:
        if not path_of(each).exists():
            path_of(each).write_bytes(encode(fill(each.record, "record")))
