"""The store's door: only the token's holder, only from this machine's own names; statements split where their data begins."""

from __future__ import annotations

import base64

import pytest

from infra.local.store_door import host_refused, token_fits, token_given
from infra.local.store_wire import SMALLEST_COMPRESSED, compress, decompress, output_format, split_insert


@pytest.mark.parametrize("host", ["127.0.0.1:8123", "localhost:8123", "[::1]:8123"])
def test_own_names_are_let_in(host: str) -> None:
    assert host_refused({"host": host}, 8123) == ""
    assert host_refused({"host": host, "origin": f"http://{host}"}, 8123) == ""


@pytest.mark.parametrize("host", ["", "evil.example:8123", "127.0.0.1:9", "127.0.0.1:8123.evil.example"])
def test_other_hosts_are_refused(host: str) -> None:
    assert "Host" in host_refused({"host": host}, 8123)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_other_origins_are_refused(origin: str) -> None:
    assert "Origin" in host_refused({"host": "localhost:8123", "origin": origin}, 8123)


def test_the_token_is_read_as_clients_send_it() -> None:
    basic = base64.b64encode(b"user:to:ken").decode()
    assert token_given({"authorization": f"Basic {basic}"}, {}) == "to:ken"
    assert token_given({"authorization": "Basic ###"}, {}) == ""
    assert token_given({"authorization": "Bearer t"}, {}) == "t"
    assert token_given({"x-clickhouse-key": "t"}, {}) == "t"
    assert token_given({}, {"password": "t"}) == "t"
    assert token_given({}, {}) == ""


def test_only_the_whole_token_fits() -> None:
    assert token_fits("token", "token")
    assert not token_fits("toke", "token")
    assert not token_fits("", "token")


def test_an_insert_is_split_where_its_data_begins() -> None:
    assert split_insert(b"INSERT INTO t (a, `FORMAT x`) FORMAT Native\n\x00\n1") == (
        "INSERT INTO t (a, `FORMAT x`) ",
        "Native",
        b"\x00\n1",
    )
    assert split_insert(b" /* c */ insert into t settings a = 'FORMAT' format TSV\n1\t2\n") == (
        " /* c */ insert into t settings a = 'FORMAT' ",
        "TSV",
        b"1\t2\n",
    )


@pytest.mark.parametrize(
    "statement", [b"SELECT 1 FORMAT TSV", b"INSERT INTO t SELECT 1 FORMAT TSV", b"INSERT INTO t VALUES ('FORMAT x')", b""]
)
def test_other_statements_are_not_split(statement: bytes) -> None:
    assert split_insert(statement) is None


def test_the_statements_own_format_wins() -> None:
    assert output_format("SELECT 1\n FORMAT Native", "TSV") == "Native"
    assert output_format("SELECT 1", "TSV") == "TSV"


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip"])
def test_bodies_pass_compressed_both_ways(encoding: str) -> None:
    data = bytes(SMALLEST_COMPRESSED) + b"x"
    packed, used = compress(data, f"{encoding};q=1.0, br")
    assert used == encoding
    assert len(packed) < len(data)
    assert decompress(packed, encoding) == data
    with pytest.raises(ValueError, match="can't be decompressed"):
        decompress(b"not packed", encoding)


def test_small_or_unasked_bodies_stay_as_they_are() -> None:
    assert compress(b"small", "lz4") == (b"small", "")
    assert compress(bytes(SMALLEST_COMPRESSED), "br") == (bytes(SMALLEST_COMPRESSED), "")
    with pytest.raises(ValueError, match="not known"):
        decompress(b"", "br")
