"""Bytes of a topic become its record, or a stated error: never something in between."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode, encode
from schemas.common import pack_floats, pack_ints, unpack_floats, unpack_ints
from schemas.errors import RecordError
from schemas.run import DeadLetter, RunEnding
from schemas.topics import BY_RECORD, BY_WIRE, MAX_MESSAGE_BYTES, Topic, key_of

EXAMPLES = Path(__file__).parents[2] / "schemas/examples"


def ending(**changes: object) -> RunEnding:
    values: dict[str, object] = {"run_id": "r", "event_id": "e", "last_generation": 3, "cause": "time"}
    return RunEnding(**(values | changes))  # type: ignore[arg-type]  # values are the fields by name


def test_a_record_comes_back_equal() -> None:
    assert decode(Topic.RUN_ENDING, encode(ending())) == ending()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_record_or_a_record_error(data: bytes) -> None:
    for topic in (Topic.RUN_ENDING, Topic.ROLLOUT_FINISHED):
        try:
            record = decode(topic, data)
        except RecordError:
            continue
        assert isinstance(record, topic.record)


def test_a_field_added_later_is_ignored_by_this_code() -> None:
    later = msgspec.msgpack.encode({**msgspec.structs.asdict(ending()), "colour": "red"})
    assert decode(Topic.RUN_ENDING, later) == ending()


@pytest.mark.parametrize("value", [-1, 2**32, 2**63])
def test_a_signature_that_no_hash_gives_is_refused_before_it_stops_a_stage(value: int) -> None:
    stored = (EXAMPLES / "EnvValidated.msgpack").read_bytes()
    assert decode(Topic.ENV_VALIDATED, stored)
    forged = msgspec.msgpack.encode({**msgspec.msgpack.decode(stored), "signature": [value]})
    with pytest.raises(RecordError, match="signature"):
        decode(Topic.ENV_VALIDATED, forged)


def test_an_unknown_schema_version_is_refused() -> None:
    with pytest.raises(RecordError, match="schema version 9"):
        decode(Topic.RUN_ENDING, encode(ending(schema_version=9)))


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(RecordError, match="not one of ours"):
        decode("spade-unheard", b"")


def test_an_oversize_record_is_refused_with_its_size_and_the_fix() -> None:
    letter = DeadLetter(
        run_id="r", event_id="e", origin_topic="t", partition=0, offset=0, reason="", data=bytes(MAX_MESSAGE_BYTES)
    )
    with pytest.raises(RecordError, match=r"at most 8388608 .*units smaller"):
        encode(letter)


def test_each_record_has_one_topic_and_each_topic_one_record() -> None:
    assert len(BY_RECORD) == len(Topic) == len(BY_WIRE)


def test_run_topics_are_keyed_by_run() -> None:
    assert key_of(ending(run_id="one")) == b"one"
    assert Topic.RUN_ENDING.is_run_topic
    assert not Topic.ROLLOUT_FINISHED.is_run_topic


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.floats(width=32, allow_nan=False)))
def test_packed_tokens_and_logprobs_come_back_equal(tokens: list[int], logprobs: list[float]) -> None:
    assert unpack_ints(pack_ints(tokens)) == tokens
    assert unpack_floats(pack_floats(logprobs)) == logprobs
