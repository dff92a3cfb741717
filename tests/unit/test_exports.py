"""Answers as JSON and CSV: nearest types, texts as they are, nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import math
import uuid

from infra.clickhouse import Answer
from infra.exports import as_records, to_csv, to_json
from infra.plaintext import escape_line

HOSTILE = 'a,"b"\r\n\x1b[31m\u202e=1'


def one_row(*values: object) -> Answer:
    return Answer(tuple(f"c{n}" for n in range(len(values))), ("T",) * len(values), [values])


def test_json_keeps_types_and_text() -> None:
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, datetime.UTC)
    row = one_row(
        2**64 - 1, 0.1, True, None, when, datetime.date(2026, 1, 2), decimal.Decimal("1.50"), uuid.UUID(int=1), HOSTILE,
        ["a", 1], {"k": (1, None)}, math.nan, -math.inf, b"\xff\x00",
    )  # fmt: skip
    text = to_json(as_records(row))
    assert text.isascii()
    assert "\x1b" not in text
    assert list(json.loads(text)["rows"][0].values()) == [
        2**64 - 1, 0.1, True, None, "2026-01-02T03:04:05.006000Z", "2026-01-02", "1.50",
        "00000000-0000-0000-0000-000000000001", HOSTILE, ["a", 1], {"k": [1, None]}, None, None, "/wA=",
    ]  # fmt: skip


def test_json_names_columns_with_their_types_and_numbers_equal_names() -> None:
    told = as_records(Answer(("a", "a", "a_2"), ("UInt8", "String", "Bool"), [(1, "x", False)]))
    assert told["columns"] == [
        {"name": "a", "type": "UInt8"},
        {"name": "a_2", "type": "String"},
        {"name": "a_2_2", "type": "Bool"},
    ]
    assert told["rows"] == [{"a": 1, "a_2": "x", "a_2_2": False}]


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_csv_is_read_back_as_it_was() -> None:
    header, row = read(to_csv(one_row(-1, -0.5, None, True, HOSTILE, ["é", 1], {"k": 1})))
    assert header == ["c0", "c1", "c2", "c3", "c4", "c5", "c6"]
    assert row == ["-1", "-0.5", "", "true", HOSTILE, '["é", 1]', '{"k": 1}']


def test_no_text_in_csv_is_a_formula_and_raw_leaves_it_as_it_is() -> None:
    texts = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "plain", "'quoted"]
    answer = Answer(("=name",), ("String",), [(text,) for text in texts])
    header, *rows = read(to_csv(answer))
    assert header == ["'=name"]
    assert [row[0] for row in rows] == [f"'{text}" for text in texts[:6]] + texts[6:]
    assert [row[0] for row in read(to_csv(answer, raw=True))] == ["=name", *texts]


def test_csv_for_a_terminal_holds_nothing_that_acts_on_it() -> None:
    text = to_csv(one_row("\x1b]0;owned\x07\u202e"), shown=escape_line)
    assert "\x1b" not in text
    assert "\\x1b]0;owned\\x07\\u202e" in text
