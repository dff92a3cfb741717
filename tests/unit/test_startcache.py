"""The broker's start cache: kept whole under its own digest, one for each set of inputs, never used once it was changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from infra.local import startcache
from schemas.errors import BrokerError

OPTIONS = ("-Xmx1m", "-Dname=value")


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A folder of two jars, written in the order that their names don't have."""
    folder = tmp_path / "cache" / "0123"
    folder.mkdir(parents=True)
    for name in ("b.jar", "a.jar"):
        (folder / name).write_bytes(b"")
    return folder


def make(jars: Path, content: bytes, options: tuple[str, ...] = OPTIONS) -> Path:
    return startcache.make(jars, options, lambda file: file.write_bytes(content))


def test_the_class_path_names_each_jar_in_one_order(jars: Path) -> None:
    assert startcache.class_path(jars) == f"{jars}/a.jar:{jars}/b.jar"


def test_a_cache_is_found_for_its_own_inputs_only(jars: Path) -> None:
    made = make(jars, b"classes")
    assert startcache.find(jars, OPTIONS) == made
    assert made.read_bytes() == b"classes"
    assert startcache.find(jars, ("-Xmx1m", "-Dname=other")) == made
    assert startcache.find(jars, ("-Xmx2m",)) is None
    assert startcache.find(jars.with_name("4567"), OPTIONS) is None


def test_a_cache_that_was_changed_is_not_used_and_goes_when_another_is_made(jars: Path) -> None:
    made = make(jars, b"classes")
    made.write_bytes(b"classeS")
    assert startcache.find(jars, OPTIONS) is None
    fresh = make(jars, b"other classes")
    assert [path.name for path in sorted(jars.parent.iterdir())] == [jars.name, fresh.name]
    assert make(jars, b"other classes") == fresh
    assert startcache.find(jars, OPTIONS) == fresh


def test_other_caches_stay_while_they_are_used(jars: Path) -> None:
    unused, used = make(jars, b"one", ("-Xmx2m",)), make(jars, b"two", ("-Xmx3m",))
    for other in (unused, used):
        os.utime(other, (0, time.time() - startcache.UNUSED_S - 60))
    assert startcache.find(jars, ("-Xmx3m",)) == used
    made = make(jars, b"classes")
    assert {path.name for path in jars.parent.iterdir()} == {jars.name, used.name, made.name}


def test_one_that_was_not_written_is_said_and_leaves_what_there_was(jars: Path) -> None:
    made = make(jars, b"classes")
    with pytest.raises(BrokerError, match=r"wrote no cache .*room"):
        startcache.make(jars, OPTIONS, lambda _: None)
    assert startcache.find(jars, OPTIONS) == made
    assert len(list(jars.parent.iterdir())) == 2
