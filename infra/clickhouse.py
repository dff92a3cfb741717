"""The store's client: ClickHouse over HTTP, a server or the embedded engine, told apart by address only.

In: a DSN `clickhouse://USER:PASSWORD@HOST:PORT/DATABASE`, with `?password_file=FILE` in place of the password and the scheme
`clickhouses` for TLS (`?ca_file=FILE` for an own authority). Out: rows as dicts. Called by memory, migrations, commands and the
design stage. Calls block up to the timeout and raise StoreError (unreachable, refused, wrong SQL) or DiskFullError.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from schemas.errors import DiskFullError, SettingsError, StoreError


class StoreAwayError(StoreError):
    """The store did not answer: worth another try, unlike a statement that it refused."""


Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A question's result: names and ClickHouse types of the columns, and the rows in their order."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


TIMEOUT_S = 60.0
NO_SPACE_CODE = 243
UNKNOWN_DATABASE, UNKNOWN_TABLE, AUTHENTICATION_FAILED = 81, 60, 516
DSN_FORM = "clickhouse://USER@HOST:PORT/DATABASE?password_file=FILE"


class Store(Protocol):
    """What the system asks of a store. Every method may block up to its timeout and raise StoreError or DiskFullError."""

    def query(self, sql: str, params: Mapping[str, Any] | None = None, *, readonly: bool = False) -> list[Row]:
        """Rows of a SELECT; values bound as `{name:Type}`. `readonly`: the server refuses everything but questions."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, token: str = "") -> None:
        """Inserts rows as one block; a block whose `token` the table has seen lately is dropped by the server."""
        ...

    def command(self, sql: str, params: Mapping[str, Any] | None = None) -> None:
        """Runs a statement without a result."""
        ...

    async def async_query(self, sql: str, params: Mapping[str, Any] | None = None) -> list[Row]:
        """As `query`, for an event loop; cancelling it closes the request."""
        ...

    def close(self) -> None:
        """Closes the connections of the blocking calls."""
        ...

    async def aclose(self) -> None:
        """Closes the connections of the asynchronous calls, in their event loop."""
        ...


@dataclass(frozen=True)
class StoreAddress:
    """A parsed DSN."""

    host: str
    port: int
    user: str
    password: str
    database: str
    secure: bool = False
    ca_file: str = ""

    @property
    def shown(self) -> str:
        """The address without its password."""
        return f"{self.host}:{self.port}/{self.database}"


def parse_dsn(dsn: str) -> StoreAddress:
    """Raises SettingsError for a DSN or password file that can't be used. Never shows the password."""
    parts = urlsplit(dsn)
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("clickhouse", "clickhouses") or not parts.hostname or port is None:
        raise SettingsError(f"the store's address is not of the form {DSN_FORM}", "Correct --store")
    unknown = sorted(set(options) - {"password_file", "ca_file"})
    if unknown:
        raise SettingsError(f"the store's address has unknown options {', '.join(unknown)}", f"Use {DSN_FORM}")
    password = unquote(parts.password or "")
    if "password_file" in options:
        try:
            password = Path(options["password_file"]).read_text(encoding="utf-8").split("\n", 1)[0]
        except OSError as problem:
            raise SettingsError(
                f"the store's password file {options['password_file']} can't be read ({problem.strerror})",
                "Write the password into that file, or name one that you may read",
            ) from problem
    return StoreAddress(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username or "default"),
        password=password,
        database=parts.path.lstrip("/") or "spade",
        secure=parts.scheme == "clickhouses",
        ca_file=options.get("ca_file", ""),
    )


def connect(dsn: str, *, timeout_s: float = TIMEOUT_S, database: str | None = None) -> ClickHouseStore:
    """A store that has answered once. `database`: another one than the DSN's ("" for none)."""
    store = ClickHouseStore(parse_dsn(dsn), timeout_s=timeout_s, database=database)
    store.query("SELECT 1 AS one")
    return store


class ClickHouseStore:
    """Store over clickhouse-connect."""

    def __init__(self, address: StoreAddress, *, timeout_s: float = TIMEOUT_S, database: str | None = None) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._database = address.database if database is None else database
        self._client: Any = None
        self._async_client: Any = None
        self._types: dict[tuple[str, ...], Any] = {}  # of the columns of tables that took an insert
        self._opening = asyncio.Lock()

    def query(self, sql: str, params: Mapping[str, Any] | None = None, *, readonly: bool = False) -> list[Row]:
        """See Store.query."""
        settings = {"readonly": 1} if readonly else {}
        with _boundary(self.address):
            return list(self._blocking().query(sql, parameters=dict(params or {}), settings=settings).named_results())

    def answer(self, sql: str, params: Mapping[str, Any] | None = None, limits: Mapping[str, Any] | None = None) -> Answer:
        """A read-only question's whole result; `limits` are the server's settings for it. Blocks and raises as `query` does."""
        with _boundary(self.address):
            settings = {"readonly": 1, **(limits or {})}
            found = self._blocking().query(sql, parameters=dict(params or {}), settings=settings)
            types = tuple(str(kind.name) for kind in found.column_types)
            return Answer(tuple(found.column_names), types, [tuple(row) for row in found.result_rows])

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, token: str = "") -> None:
        """See Store.insert."""
        if not rows:
            return
        settings = {"insert_deduplication_token": token} if token else {}
        with _boundary(self.address):
            client, names = self._blocking(), list(columns)
            # Without types the client describes the table before every insert. Those of a refused insert are asked for again.
            types = self._types.pop((table, *names), None) or client.create_insert_context(table, names).column_types
            client.insert(table, rows, column_names=names, column_types=types, settings=settings)
            self._types[table, *names] = types

    def command(self, sql: str, params: Mapping[str, Any] | None = None) -> None:
        """See Store.command."""
        with _boundary(self.address):
            self._blocking().command(sql, parameters=dict(params or {}))

    async def async_query(self, sql: str, params: Mapping[str, Any] | None = None) -> list[Row]:
        """See Store.async_query. One event loop an object."""
        with _boundary(self.address):
            client = await self._asynchronous()
            answer = await client.query(sql, parameters=dict(params or {}))
            return list(answer.named_results())

    def close(self) -> None:
        """See Store.close."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def aclose(self) -> None:
        """See Store.aclose."""
        if self._async_client is not None:
            await self._async_client.close()
            self._async_client = None

    def _blocking(self) -> Any:
        if self._client is None:
            import clickhouse_connect

            _quieten()
            self._client = clickhouse_connect.get_client(**self._options())
        return self._client

    async def _asynchronous(self) -> Any:
        async with self._opening:  # several tasks may ask first at once: one client, not one each
            if self._async_client is None:
                import clickhouse_connect

                _quieten()
                self._async_client = await clickhouse_connect.get_async_client(**self._options())
            return self._async_client

    def _options(self) -> dict[str, Any]:
        address = self.address
        return {
            "host": address.host,
            "port": address.port,
            "username": address.user,
            "password": address.password,
            "database": self._database or "default",
            "secure": address.secure,
            "ca_cert": address.ca_file or None,
            "connect_timeout": min(10, int(self._timeout_s) or 1),
            "send_receive_timeout": int(self._timeout_s) or 1,
            "autogenerate_session_id": False,  # no session: calls from several threads and tasks may run at once
            "compress": False,  # on loopback it costs more than it saves
        }


def _quieten() -> None:
    # The boundary error says in one line what these say in several.
    for name in ("clickhouse_connect", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)


class _boundary:  # noqa: N801  (reads as a statement: with _boundary(address))
    """Turns what the client raises into StoreError and DiskFullError."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        if problem is None or not isinstance(problem, Exception):
            return
        from clickhouse_connect.driver.exceptions import ClickHouseError

        if isinstance(problem, ClickHouseError | OSError):
            raise store_error(self._address, problem) from problem


def store_error(address: StoreAddress, problem: Exception) -> StoreError | DiskFullError:
    """The boundary error of a client's exception: one line with the address and the fix."""
    code = getattr(problem, "code", None)
    text = " ".join(str(problem).split())
    if code == NO_SPACE_CODE or "No space left" in text:
        return DiskFullError(f"store {address.shown} has no space left", "Free some; what was stored before is whole")
    if code == AUTHENTICATION_FAILED:
        return StoreError(
            f"store {address.shown} refuses user {address.user}'s password",
            "Leave --store away for the store of `spade up`, or name a DSN with ?password_file=FILE",
        )
    if code == UNKNOWN_TABLE and (named := re.search(r"Unknown table expression identifier '([^']{1,100})'", text)):
        return StoreError(
            f"store {address.shown} has no table {named[1]}",
            "SHOW TABLES tells its own; of ours none is there before `spade migrate`",
        )
    if code in (UNKNOWN_DATABASE, UNKNOWN_TABLE):
        return StoreError(f"store {address.shown} lacks our tables as yet", "Run `spade migrate` once, or start a run on it")
    if not _away(problem):
        return StoreError(f"store {address.shown} refused a statement: {text[:500]}")
    return StoreAwayError(
        f"can't reach store {address.shown} ({_root_cause(problem)})",
        "Start it (`spade up` for a local one) or name another with --store",
    )


def _away(problem: BaseException) -> bool:
    from clickhouse_connect.driver.exceptions import OperationalError

    return isinstance(problem, OSError | OperationalError)


def _root_cause(problem: BaseException) -> str:
    """The operating system's word for it where there is one, else the client's first words."""
    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return " ".join(str(problem).split())[:160]
