"""The embedded ClickHouse store on this machine, as an owned process.

In: a data folder and, if wished, a port. Out: a DSN that infra.clickhouse and any ClickHouse HTTP client can use. Called by
`spade up`, `spade run`, `spade demo` and the tests.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

from infra.local.ports import LOOPBACK, free_ports, require_free
from infra.local.processes import STOP_FIRST, OwnedProcess, last_lines, noted
from schemas.errors import DiskFullError, StoreError

READY_LIMIT_S = 120.0  # 1 s on an idle machine
LEAST_FREE_BYTES = 256 * 1024 * 1024
DATABASE = "spade"


class LocalStore:
    """A running embedded store. Make one with `start` or find the one of `spade up` with `attach`."""

    def __init__(self, data_dir: Path, port: int, process: OwnedProcess, *, detached: bool) -> None:
        self.data_dir = data_dir.resolve()
        self.port = port
        self._process = process
        self._detached = detached

    @classmethod
    def start(cls, data_dir: Path, *, port: int | None = None, detached: bool = False) -> LocalStore:
        """Starts the store on `data_dir` (kept) and waits until it answers, up to READY_LIMIT_S; a free port by default.

        Unless `detached` it is killed when the starting thread ends. Raises PortInUseError, DiskFullError, StoreError.
        """
        data_dir.mkdir(parents=True, exist_ok=True)
        running = cls.attach(data_dir)
        if running is not None:
            raise StoreError(f"a store (process {running.pid}) already serves {data_dir} on port {running.port}", STOP_FIRST)
        if port is not None:
            require_free(port, "store")
        store = cls(data_dir, port or free_ports(1)[0], OwnedProcess(0, ""), detached=detached)
        store._launch()
        return store

    @classmethod
    def attach(cls, data_dir: Path) -> LocalStore | None:
        """The store that serves `data_dir` now, started by whatever process; None when there is none."""
        state = data_dir / "store.json"
        if not state.exists():
            return None
        found = json.loads(state.read_text())
        process = OwnedProcess(found["pid"], found["born"])
        return cls(data_dir, found["port"], process, detached=True) if process.alive() else None

    @property
    def dsn(self) -> str:
        """`clickhouse://spade@HOST:PORT/spade?password_file=...`; the token itself is only in the file."""
        return f"clickhouse://spade@{LOOPBACK}:{self.port}/{DATABASE}?password_file={quote(str(self.token_file))}"

    @property
    def token_file(self) -> Path:
        """Readable by this user only; a new token at each start."""
        return self.data_dir / "token"

    @property
    def pid(self) -> int:
        """The process that serves, 0 when stopped."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the server printed."""
        return self.data_dir / "store.log"

    @property
    def exit_code(self) -> int | None:
        """How the process ended, once `alive` has seen it; None while it runs."""
        return self._process.exit_code

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.alive()

    def stop(self, deadline_s: float = 15.0) -> None:
        """SIGTERM, SIGKILL after `deadline_s`; the data stays. Does nothing when it has stopped already."""
        self._process.stop(deadline_s)
        self._forget()

    def kill(self) -> None:
        """SIGKILL, as a crash would; the data stays."""
        self._process.kill()
        self._forget()

    def restart(self) -> None:
        """Starts again on the same port, data and token after `stop`, `kill` or a crash; stops it first when it runs."""
        token = self.token_file.read_text()
        self.stop()
        self._launch(token)

    def _forget(self) -> None:
        (self.data_dir / "store.json").unlink(missing_ok=True)

    def _launch(self, token: str | None = None) -> None:
        free = shutil.disk_usage(self.data_dir).free
        if free < LEAST_FREE_BYTES:
            raise DiskFullError(
                f"{self.data_dir} has {free // 2**20} MiB free, the store needs {LEAST_FREE_BYTES // 2**20}",
                "Free some, or name another folder",
            )
        # The token takes its place only when the new server has the folder: a refused start leaves the running one's in force.
        offered = self.data_dir / f"token.{os.getpid()}"
        _write_secret(offered, secrets.token_urlsafe(32) if token is None else token)
        try:
            self._serve(offered)
            offered.replace(self.token_file)
        finally:
            offered.unlink(missing_ok=True)

    def _serve(self, token_file: Path) -> None:
        start = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "infra.local.store_server", "--path", str(self.data_dir / "engine")]
        self._process = OwnedProcess.start(
            [*command, "--port", str(self.port), "--token-file", str(token_file)],
            self.log,
            env={**os.environ, "TZ": "UTC"},
            detached=self._detached,
        )
        state = {"pid": self.pid, "born": self._process.born, "port": self.port}
        with noted(self.data_dir / "store.json", state):
            self._wait_ready(start)

    def _wait_ready(self, start: int) -> None:
        end = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < end and self._process.alive():
            try:
                with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/ping", timeout=2) as answer:
                    if answer.read() == b"Ok.\n" and self._process.alive():
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        ended = not self._process.alive()
        self._process.kill()
        said = last_lines(self.log, start)
        if "address already in use" in said.lower():
            require_free(self.port, "store")
        what = "ended while starting" if ended else f"was not ready after {READY_LIMIT_S:.0f} s"
        raise StoreError(f"the store on {self.data_dir} {what}; its log ends: {said}", f"The whole log is {self.log}")


def _write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as sink:  # noqa: PTH123
        sink.write(secret)
