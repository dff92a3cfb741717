"""Apache Kafka itself, one KRaft node on this machine, as an owned process.

In: a data folder and, if wished, ports. Out: an address that any Kafka client can use. Called by `spade up`, `spade run`,
`spade demo` and the tests. Loopback only, without a password: who may run programs here may use it.
"""

from __future__ import annotations

import base64
import json
import shutil
import string
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from infra.local import startcache
from infra.local.jars import ensure_jars, java
from infra.local.ports import LOOPBACK, free_ports, require_free
from infra.local.processes import STOP_FIRST, OwnedProcess, last_lines, noted
from schemas.errors import BrokerError, DiskFullError

TEMPLATE = Path(__file__).with_name("server.properties")
LOG4J = Path(__file__).with_name("log4j2.properties")
READY = b"Kafka Server started"
READY_LIMIT_S = 180.0  # 3 s on an idle machine
FORMAT_LIMIT_S = 180.0
CACHE_LIMIT_S = 300.0  # a quarter of a minute on an idle machine
LEAST_FREE_BYTES = 256 * 1024 * 1024
# One garbage collector thread and the quick compiler only: on two cores start-up and idle cost matter more than peak speed.
JVM_OPTIONS = (
    "-Xmx512m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    f"-Dlog4j2.configurationFile={LOG4J}",
)


class LocalBroker:
    """A running local broker. Make one with `start` or find the one of `spade up` with `attach`."""

    def __init__(self, data_dir: Path, port: int, controller_port: int, process: OwnedProcess, *, detached: bool) -> None:
        self.data_dir = data_dir.resolve()  # Kafka runs in it
        self.port = port
        self.controller_port = controller_port
        self._process = process
        self._detached = detached

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        port: int | None = None,
        controller_port: int | None = None,
        detached: bool = False,
        properties: str | None = None,
    ) -> LocalBroker:
        """Starts Kafka on `data_dir` (kept; formatted when new) and waits until it serves, up to READY_LIMIT_S.

        Free ports by default. `properties` replaces the template, with the same ${port}, ${controller_port}, ${log_dir}. Unless
        `detached` it is killed when the starting thread ends. Raises PortInUseError, ArtifactError, DiskFullError, BrokerError.
        """
        data_dir.mkdir(parents=True, exist_ok=True)
        running = cls.attach(data_dir)
        if running is not None:
            raise BrokerError(f"a broker (process {running.pid}) already serves {data_dir} at {running.address}", STOP_FIRST)
        for given in (port, controller_port):
            if given is not None:
                require_free(given, "broker")
        free = iter(free_ports(2))
        broker = cls(data_dir, port or next(free), controller_port or next(free), OwnedProcess(0, ""), detached=detached)
        broker._launch(TEMPLATE.read_text() if properties is None else properties)
        return broker

    @classmethod
    def attach(cls, data_dir: Path) -> LocalBroker | None:
        """The broker that serves `data_dir` now, started by whatever process; None when there is none."""
        state = data_dir / "broker.json"
        if not state.exists():
            return None
        found = json.loads(state.read_text())
        process = OwnedProcess(found["pid"], found["born"])
        if not process.alive():
            return None
        return cls(data_dir, found["port"], found["controller_port"], process, detached=True)

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The process that serves, 0 when stopped."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """What Kafka printed."""
        return self.data_dir / "broker.log"

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
        """Starts again on the same ports and data after `stop`, `kill` or a crash; stops it first when it runs."""
        self.stop()
        self._launch(None)

    def _forget(self) -> None:
        (self.data_dir / "broker.json").unlink(missing_ok=True)

    def _launch(self, template: str | None, record: Path | None = None) -> None:
        _require_space(self.data_dir)
        command = _java(record)
        # Java reads the file as Latin-1 and Kafka splits folders at commas: names in it are relative to where it runs.
        config = self.data_dir / "server.properties"
        log_dir = self.data_dir / "log"
        if template is not None:
            config.write_text(
                string.Template(template).substitute(port=self.port, controller_port=self.controller_port, log_dir=log_dir.name)
            )
        if not (log_dir / "meta.properties").exists():
            self._format([*command, "kafka.tools.StorageTool"], config)
        start = self.log.stat().st_size if self.log.exists() else 0
        self._process = OwnedProcess.start(
            [*command, "kafka.Kafka", config.name],
            self.log,
            cwd=self.data_dir,
            detached=self._detached,
        )
        state = {"pid": self.pid, "born": self._process.born, "port": self.port, "controller_port": self.controller_port}
        with noted(self.data_dir / "broker.json", state):
            self._wait_ready(start)

    def _format(self, tool: list[str], config: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        try:
            answer = subprocess.run(
                [*tool, "format", "-t", cluster, "-c", config.name],
                cwd=self.data_dir,
                capture_output=True,
                text=True,
                timeout=FORMAT_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as problem:
            raise BrokerError(
                f"Kafka did not format {self.data_dir} within {FORMAT_LIMIT_S:.0f} s", "See what else keeps this machine busy"
            ) from problem
        if answer.returncode != 0:
            lines = (answer.stdout + answer.stderr).splitlines()
            said = " | ".join(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("at "))[-600:]
            raise BrokerError(f"Kafka can't format {self.data_dir}: {said}", "Remove the folder, or name another one")

    def _wait_ready(self, start: int) -> None:
        end = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < end:
            with self.log.open("rb") as source:
                source.seek(start)
                if READY in source.read():
                    return
            if not self._process.alive():
                break
            time.sleep(0.05)
        ended = not self._process.alive()
        self._process.kill()
        said = last_lines(self.log, start)
        if "No space left on device" in said:
            raise DiskFullError(
                f"the broker found no space left below {self.data_dir}", "Free some and start again: its log is whole"
            )
        if "Address already in use" in said:
            require_free(self.port, "broker")
            require_free(self.controller_port, "broker's controller")
        what = "ended while starting" if ended else f"was not ready after {READY_LIMIT_S:.0f} s"
        raise BrokerError(f"the broker on {self.data_dir} {what}; its log ends: {said}", f"The whole log is {self.log}")


def ensure_start_cache(use: Callable[[str], object]) -> Path:
    """The file that makes a broker start in half the time. Where there is none yet, a broker runs once, `use` is called with its
    address, and it writes the file as it ends (a quarter of a minute). Raises BrokerError, ArtifactError, DiskFullError, and
    what `use` raises.
    """
    jars = ensure_jars()

    def record(file: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="spade-broker-") as home:
            port, controller_port = free_ports(2)
            broker = LocalBroker(Path(home), port, controller_port, OwnedProcess(0, ""), detached=False)
            try:
                broker._launch(TEMPLATE.read_text(), file)
                use(broker.address)
            finally:
                broker.stop(CACHE_LIMIT_S)

    return startcache.find(jars, JVM_OPTIONS) or startcache.make(jars, JVM_OPTIONS, record)


def _require_space(data_dir: Path) -> None:
    free = shutil.disk_usage(data_dir).free
    if free < LEAST_FREE_BYTES:
        raise DiskFullError(
            f"{data_dir} has {free // 2**20} MiB free, the broker needs {LEAST_FREE_BYTES // 2**20}",
            "Free some, or name another folder",
        )


def _java(record: Path | None) -> list[str]:
    """The command line up to the class, with the start cache where there is one, or with the file that one is written to."""
    jars = ensure_jars()
    cache = None if record else startcache.find(jars, JVM_OPTIONS)
    start = [f"-XX:AOTCacheOutput={record}"] if record else [f"-XX:AOTCache={cache}"] if cache else []
    return [str(java()), *start, *JVM_OPTIONS, "-cp", startcache.class_path(jars)]
