"""Drafts: in their place whole or not at all, never over what somebody else put there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from infra.durable import copy_durably, draft_folder, write_durably, write_error, write_whole
from schemas.errors import DiskFullError, PolicyError


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_is_kept_stands_whole_and_no_draft_beside_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in ("new", "empty"):
        with draft_folder(tmp_path, target) as draft:
            write_durably(draft.folder / "one", b"1")
            copy_durably(draft.folder / "one", draft.folder / "two")
            assert draft.keep(tmp_path / target) == tmp_path / target
        assert [(path.name, path.read_bytes()) for path in sorted((tmp_path / target).iterdir())] == [
            ("one", b"1"),
            ("two", b"1"),
        ]
    assert names(tmp_path) == ["empty", "new"]


def test_what_fails_or_is_not_kept_leaves_what_stood_there(tmp_path: Path) -> None:
    old = tmp_path / "made" / "old"
    with draft_folder(old.parent, "old") as draft:
        write_durably(draft.folder / "one", b"1")
        draft.keep(old)
    with pytest.raises(FileNotFoundError), draft_folder(old.parent, "old") as draft:
        copy_durably(draft.folder / "missing", draft.folder / "one")
    with draft_folder(old.parent, "old") as draft:
        write_durably(draft.folder / "one", b"2")
    with pytest.raises(OSError, match="not empty"), draft_folder(old.parent, "old") as draft:
        draft.keep(old)
    assert names(old.parent) == ["old"]
    assert (old / "one").read_bytes() == b"1"


def test_a_folder_in_the_way_goes_only_where_that_is_asked_for(tmp_path: Path) -> None:
    old = tmp_path / "old"
    for content in (b"1", b"2"):
        with draft_folder(tmp_path, "old") as draft:
            write_durably(draft.folder / content.decode(), content)
            draft.keep(old, replace=True)
    assert names(old) == ["2"]
    assert oct(old.stat().st_mode & 0o777) == "0o755"


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state.json"
    write_whole(file, b"1")
    write_whole(file, b"22")
    assert (names(tmp_path), file.read_bytes()) == (["state.json"], b"22")

    def full(_file: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "link").symlink_to(file)
    write_whole(tmp_path / "link", b"1")
    write_whole(tmp_path / "link", b"22")
    assert (tmp_path / "link").is_symlink()
    assert file.read_bytes() == b"22"
    (tmp_path / "link").unlink()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="space"):
        write_whole(file, b"333")
    assert file.read_bytes() == b"22"


def test_a_pipe_takes_the_data_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"text")
    assert os.read(reading, 99) == b"text"
    os.close(reading)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EACCES, PolicyError)]
)
def test_a_failed_write_is_told_with_what_was_written(number: int, kind: type[Exception]) -> None:
    told = write_error(OSError(number, os.strerror(number)), "policy 3")
    assert isinstance(told, kind)
    assert "policy 3" in str(told)
