"""The embedded store answers the unmodified client as a server would, keeps its door shut and its rows through kill -9."""

from __future__ import annotations

import asyncio
import datetime
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import clickhouse_connect
import lz4.frame  # type: ignore[import-untyped]  # ships no types
import pytest
import zstandard

from infra.clickhouse import ClickHouseStore, StoreAwayError, connect, parse_dsn
from infra.local.store import LocalStore
from infra.local.store_wire import decompress
from infra.migrate import migrate
from schemas.errors import PortInUseError, SettingsError, StoreError

pytestmark = pytest.mark.integration


@pytest.fixture
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    yield opened
    opened.close()


@pytest.fixture
def table(client: ClickHouseStore) -> Iterator[str]:
    """A table of this test's own: a UInt64, s String, x Nullable(Float64), parts Array(String), at DateTime64."""
    name = f"t_{uuid.uuid4().hex[:10]}"
    client.command(
        f"CREATE TABLE {name} (a UInt64, s String, x Nullable(Float64), parts Array(String), at DateTime64(3, 'UTC')) "
        "ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100"
    )
    yield name
    client.command(f"DROP TABLE {name}")


COLUMNS = ["a", "s", "x", "parts", "at"]
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, datetime.UTC)


def rows(count: int) -> list[list[Any]]:
    return [[number, f"it's\n\\ {number}", None if number % 2 else 0.5, ["a'b", ""], AT] for number in range(count)]


def raw_client(store: LocalStore, **options: Any) -> Any:
    return clickhouse_connect.get_client(
        host="127.0.0.1", port=store.port, username="u", password=store.token_file.read_text(), database="spade", **options
    )


@pytest.mark.parametrize("encoding", ["lz4", "zstd"])
def test_a_body_of_several_frames_is_read_whole_and_one_that_is_cut_off_is_refused(encoding: str) -> None:
    pack = lz4.frame.compress if encoding == "lz4" else zstandard.ZstdCompressor().compress
    frames = [pack(bytes([number]) * 5000) for number in range(3)]
    assert decompress(b"".join(frames), encoding) == b"".join(bytes([number]) * 5000 for number in range(3))
    for cut in (b"".join(frames)[:-3], frames[0][:-1]):
        with pytest.raises(ValueError, match=r"cut off|can't be decompressed"):
            decompress(cut, encoding)


def test_a_store_in_a_folder_of_any_name_is_found_by_its_dsn(tmp_path: Path) -> None:
    local = LocalStore.start(tmp_path / "c++ R&D #1 50%20x")
    try:
        migrate(local.dsn)
        with closing(connect(local.dsn)) as client:
            assert client.query("SELECT 1 AS one") == [{"one": 1}]
    finally:
        local.stop()
    with pytest.raises(StoreError, match="question mark"):
        LocalStore.start(tmp_path / "a?b")


@pytest.mark.parametrize("compression", [True, False, "lz4", "zstd", "gzip"])
def test_rows_come_back_as_they_went_with_every_compression(store: LocalStore, table: str, compression: bool | str) -> None:
    client = raw_client(store, compress=compression)
    summary = client.insert(table, rows(3000), column_names=COLUMNS).summary
    assert summary["written_rows"] == "3000"
    answer = client.query(f"SELECT * FROM {table} ORDER BY a")
    assert [[*row[:4], row[4].replace(tzinfo=datetime.UTC)] for row in answer.result_rows] == rows(3000)
    assert answer.summary["read_rows"] == "3000"
    client.close()


def test_parameters_are_bound_and_never_part_of_the_text(client: ClickHouseStore) -> None:
    hostile = "'; DROP TABLE x; -- \n\t\\"
    (row,) = client.query(
        "SELECT {s:String} AS s, {n:Int32} + 1 AS n, {l:Array(String)} AS l", {"s": hostile, "n": 4, "l": [hostile]}
    )
    assert row == {"s": hostile, "n": 5, "l": [hostile]}


def test_a_block_with_a_seen_token_is_dropped_and_one_with_another_is_not(client: ClickHouseStore, table: str) -> None:
    for token in ("topic:0:0-9", "topic:0:0-9", "topic:0:10-19"):
        client.insert(table, COLUMNS, rows(10), token=token)
    assert client.query(f"SELECT count() AS n FROM {table}") == [{"n": 20}]


def test_settings_and_databases_of_one_request_do_not_leak_into_the_next(store: LocalStore) -> None:
    for session in (True, False):
        client = raw_client(store, autogenerate_session_id=session)
        assert client.command("SELECT getSetting('max_block_size')", settings={"max_block_size": 77}) == 77
        assert client.command("SELECT getSetting('max_block_size')") != 77
        client.close()


def test_a_session_keeps_its_temporary_table(store: LocalStore) -> None:
    client = raw_client(store, session_id=uuid.uuid4().hex)
    client.command("CREATE TEMPORARY TABLE mine (a Int32)")
    client.command("INSERT INTO mine SELECT 7")
    assert client.command("SELECT a FROM mine") == 7
    client.close()


def test_errors_carry_clickhouse_codes_and_become_one_line(client: ClickHouseStore, store: LocalStore) -> None:
    with pytest.raises(StoreError, match=r"has no table nowhere.*spade migrate") as caught:
        client.query("SELECT * FROM nowhere")
    assert not isinstance(caught.value, StoreAwayError)
    with pytest.raises(StoreError, match=r"refused a statement.*Syntax error"):
        client.query("SELEC 1")
    with pytest.raises(clickhouse_connect.driver.exceptions.DatabaseError, match="code: 60"):
        raw_client(store).query("SELECT * FROM nowhere")


def test_the_asynchronous_client_answers_many_at_once(store: LocalStore) -> None:
    async def ask() -> list[int]:
        client = ClickHouseStore(parse_dsn(store.dsn))
        try:
            answers = await asyncio.gather(*[client.async_query("SELECT {n:Int32} AS n", {"n": n}) for n in range(8)])
        finally:
            await client.aclose()
        return [answer[0]["n"] for answer in answers]

    assert asyncio.run(ask()) == list(range(8))


def test_two_processes_insert_at_once_and_every_row_is_there(store: LocalStore, client: ClickHouseStore, table: str) -> None:
    script = (
        "import sys\nfrom infra.clickhouse import connect\n"
        "client = connect(sys.argv[1])\n"
        "for batch in range(20):\n"
        "    client.insert(sys.argv[2], ['a', 's'], [[int(sys.argv[3]) * 10000 + batch * 100 + n, 'x'] for n in range(100)])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, store.dsn, table, str(number)]) for number in range(2)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert client.query(f"SELECT count() AS n, uniqExact(a) AS u FROM {table}") == [{"n": 4000, "u": 4000}]


def test_a_wrong_token_is_refused_and_the_right_one_is_only_in_a_private_file(store: LocalStore) -> None:
    assert stat.S_IMODE(store.token_file.stat().st_mode) == 0o600
    assert store.token_file.read_text() not in store.dsn
    with pytest.raises(StoreError, match="refuses user u's password"):
        connect(f"clickhouse://u:wrong@127.0.0.1:{store.port}/spade")


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
@pytest.mark.parametrize("path", ["ping", "?query=SELECT+1"])
def test_a_web_page_can_not_ask(store: LocalStore, headers: dict[str, str], path: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{store.port}/{path}", headers={"X-ClickHouse-Key": store.token_file.read_text(), **headers}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 403
    caught.value.close()


def test_only_the_loopback_address_listens(store: LocalStore) -> None:
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{store.port:04X}")] == [f"0100007F:{store.port:04X}"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM file('/etc/hostname', 'LineAsString')",
        "SELECT file('/etc/hostname')",
        "SELECT 1 UNION ALL SELECT * FROM FILE('/etc/hostname', 'LineAsString')",
        "DESCRIBE file('/etc/hostname', 'LineAsString')",
        "SELECT 1 WHERE 'x' IN (SELECT * FROM file('/etc/hostname', 'LineAsString'))",
        "EXPLAIN SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM s3('http://127.0.0.1:1/x')",
        "SELECT * FROM remote('127.0.0.1:1', system.one)",
        "SELECT * FROM executable('ls', 'TSV', 'a String')",
        "SELECT * FROM input('a String')",
        "SELECT * FROM default.`/etc/hostname`",
        "SELECT 1 INTO OUTFILE '/tmp/never'",
        "SELECT 1; SELECT file('/etc/hostname')",
        "INSERT INTO runs (run_id) SELECT 'x'",
        "DROP TABLE runs",
        "SET readonly = 0",
        "CREATE TABLE x (a Int32) ENGINE = Memory",
        "SYSTEM SHUTDOWN",
    ],
)
def test_a_read_only_question_reaches_nothing_but_the_tables(client: ClickHouseStore, statement: str) -> None:
    with pytest.raises(StoreError):
        client.query(statement, readonly=True)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count() AS n FROM runs WHERE run_id IN (SELECT toString(number) FROM numbers(3)) -- c",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        "SHOW TABLES",
        "DESCRIBE runs",
        "EXISTS runs",
        "EXPLAIN SELECT * FROM runs",
        "SELECT 'file(''/etc/hostname'')' AS text",
    ],
)
def test_a_read_only_question_about_the_tables_is_answered(client: ClickHouseStore, statement: str) -> None:
    assert client.query(statement, readonly=True)


def test_what_was_acknowledged_survives_kill_9_and_another_owner_is_refused(tmp_path: Path) -> None:
    local = LocalStore.start(tmp_path / "own")
    try:
        client = connect(local.dsn, database="")
        client.command("CREATE DATABASE spade")
        client.command("CREATE TABLE spade.t (a UInt64) ENGINE = MergeTree ORDER BY a")
        client.insert("spade.t", ["a"], [[number] for number in range(1000)])
        with pytest.raises(StoreError, match=f"process {local.pid}.*already serves"):
            LocalStore.start(local.data_dir)
        (local.data_dir / "store.json").unlink()  # the second net, where the state file is gone
        with pytest.raises(StoreError, match=f"is already served by process {local.pid}"):
            LocalStore.start(local.data_dir)
        connect(local.dsn).close()  # the refused start left the token in force
        local.kill()
        with pytest.raises(
            StoreAwayError, match=f"can't reach store 127.0.0.1:{local.port}/spade .*Connection refused.*spade up"
        ):
            connect(local.dsn)
        local.restart()
        again = connect(local.dsn)
        assert again.query("SELECT count() AS n FROM t") == [{"n": 1000}]
        again.close()
        client.close()
    finally:
        local.stop()
    assert LocalStore.attach(local.data_dir) is None


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is taken, the store"):
            LocalStore.start(tmp_path, port=port)


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("http://x", "not of the form clickhouse://"),
        ("clickhouse://host/db", "not of the form"),
        ("clickhouse://u:secret@h:1/d?colour=red", "unknown options colour"),
        ("clickhouse://u@h:1/d?password_file=/nowhere", "password file /nowhere can't be read"),
    ],
)
def test_an_address_that_can_not_be_used_is_explained_without_its_password(dsn: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        parse_dsn(dsn)
    assert "secret" not in str(caught.value)
