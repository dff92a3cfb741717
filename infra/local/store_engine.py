"""The embedded ClickHouse engine behind the store server: one statement a call, each in a connection of its own.

A connection costs about 0.2 ms and carries the request's database and settings, so nothing leaks from one request to the next;
only requests of a named session share one. Called by the store server from several threads; blocks while a statement runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from infra.local.store_door import READONLY
from infra.local.store_wire import output_format, split_insert
from infra.readonly import read_refused, text_refused

_CODE = re.compile(r"Code: (\d+)\.")
_SETTING = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
SESSION_LIMIT = 256
SESSION_TIMEOUT_S = 60.0


class EngineError(Exception):
    """A statement that the engine or the door refused, with ClickHouse's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Question:
    """One request: the statement (with the data of an insert behind it) and what it is asked under."""

    statement: bytes
    database: str = ""
    default_format: str = "TabSeparated"
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)  # without the prefix param_
    readonly: bool = False
    session_id: str = ""


@dataclass(frozen=True)
class Answer:
    """The result's bytes in `format`, and the counts of the summary header."""

    body: bytes
    format: str
    summary: dict[str, str]


class _Session:
    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.used = time.monotonic()


class Engine:
    """Owns one data folder; a second owner is refused."""

    def __init__(self, path: Path) -> None:
        import chdb

        if "?" in str(path):
            raise EngineError(0, f"the engine can't keep data in {path}: it takes a question mark for the end of a path")
        path.mkdir(parents=True, exist_ok=True)
        self._owner = _own(path / ".owner")
        self._chdb = chdb
        self._path = str(path / "data")
        self._root = chdb.connect(self._path)  # keeps the engine open between requests
        self._sessions: dict[str, _Session] = {}
        self._guard = threading.Lock()
        listed = self._root.query("SELECT lower(name) FROM system.table_functions", "TSV").bytes().decode()
        self._table_functions = frozenset(listed.split())

    def ask(self, question: Question) -> Answer:
        """Runs one statement. Raises EngineError."""
        started = time.perf_counter()
        with self._connected(question) as connection:
            try:
                if question.readonly:
                    self._check_readonly(connection, question)
                answer = self._run(connection, question)
            except EngineError:
                raise
            except (RuntimeError, self._chdb.ChdbError) as problem:
                raise _engine_error(problem) from problem
        answer.summary["elapsed_ns"] = str(int((time.perf_counter() - started) * 1e9))
        return answer

    def close(self) -> None:
        """Closes every connection and gives the folder back."""
        for session in self._sessions.values():
            session.connection.close()
        self._root.close()
        self._owner.close()

    def _run(self, connection: Any, question: Question) -> Answer:
        insert = split_insert(question.statement)
        if insert is not None:
            head, name, data = insert
            with connection.send_insert(head, name) as inserter:
                if data:
                    inserter.append(data)
                rows = inserter.finish().rows_written
            return Answer(b"", name, _summary(written_rows=rows, written_bytes=len(data)))
        text = question.statement.decode()
        wanted = output_format(text, question.default_format)
        result = connection.query(text, wanted, params=dict(question.parameters))
        body = bytes(result.bytes() or b"")
        return Answer(
            body, wanted, _summary(read_rows=result.rows_read(), read_bytes=result.bytes_read(), result_bytes=len(body))
        )

    def _check_readonly(self, connection: Any, question: Question) -> None:
        # formatQuery parses without executing, and refuses a second statement behind the first
        text = question.statement.decode()
        quoted = text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
        formatted = connection.query("SELECT formatQuery({spade_text:String})", "TSVRaw", params={"spade_text": quoted})
        tree = (
            connection.query(f"EXPLAIN AST {text}", "TSVRaw", params=dict(question.parameters)).bytes().decode(errors="replace")
        )
        canonical = formatted.bytes().decode(errors="replace")
        refused = text_refused(text) or read_refused(tree, self._table_functions, question.database, canonical)
        if refused:
            raise EngineError(READONLY, f"Code: {READONLY}. DB::Exception: {refused}. (READONLY)")

    @contextlib.contextmanager
    def _connected(self, question: Question) -> Iterator[Any]:
        if question.session_id and not question.readonly:
            session = self._session(question.session_id)
            with session.lock:
                before = self._changed(session.connection, question.settings)
                try:
                    self._prepare(session.connection, question)
                    yield session.connection
                finally:
                    _set(session.connection, before)
                    session.used = time.monotonic()
            return
        connection = self._chdb.connect(self._path)
        try:
            self._prepare(connection, question)
            yield connection
        finally:
            connection.close()

    def _prepare(self, connection: Any, question: Question) -> None:
        try:
            if question.database:
                name = question.database.replace("\\", "\\\\").replace("`", "\\`")
                connection.query(f"USE `{name}`")
            _set(connection, question.settings)
            if question.readonly:
                connection.query("SET readonly = 1")
        except (RuntimeError, self._chdb.ChdbError) as problem:
            raise _engine_error(problem) from problem

    def _session(self, session_id: str) -> _Session:
        with self._guard:
            now = time.monotonic()
            for name, old in list(self._sessions.items()):
                if now - old.used > SESSION_TIMEOUT_S and not old.lock.locked():
                    self._sessions.pop(name).connection.close()
            if session_id not in self._sessions:
                if len(self._sessions) >= SESSION_LIMIT:
                    raise EngineError(202, "Code: 202. DB::Exception: too many sessions. (TOO_MANY_SIMULTANEOUS_QUERIES)")
                self._sessions[session_id] = _Session(self._chdb.connect(self._path))
            session = self._sessions[session_id]
            session.used = now
            return session

    @staticmethod
    def _changed(connection: Any, settings: Mapping[str, str]) -> dict[str, str]:
        if not settings:
            return {}
        names = ", ".join(f"'{name}'" for name in settings if _SETTING.match(name))
        rows = connection.query(f"SELECT name, value FROM system.settings WHERE name IN ({names})", "TSVRaw").bytes().decode()  # noqa: S608
        return dict(line.split("\t", 1) for line in rows.splitlines())


def _set(connection: Any, settings: Mapping[str, str]) -> None:
    parts = []
    for name, value in settings.items():
        if not _SETTING.match(name):
            raise EngineError(115, f"Code: 115. DB::Exception: Unknown setting {name!r}. (UNKNOWN_SETTING)")
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        parts.append(f"{name} = '{quoted}'")
    if parts:
        connection.query("SET " + ", ".join(parts))


def _summary(**counts: int) -> dict[str, str]:
    names = ("read_rows", "read_bytes", "written_rows", "written_bytes", "total_rows_to_read", "result_rows", "result_bytes")
    return {name: str(counts.get(name, 0)) for name in names}


def _engine_error(problem: Exception) -> EngineError:
    text = str(problem)
    match = _CODE.search(text)
    return EngineError(int(match[1]) if match else 1002, text[match.start() :] if match else f"Code: 1002. DB::Exception: {text}")


def _own(path: Path) -> IO[str]:
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        owner = handle.read().strip()
        handle.close()
        raise EngineError(0, f"{path.parent} is already served by process {owner}") from None
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle
