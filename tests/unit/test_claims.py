"""Claim checks: a large record comes back equal from its place, and a claim can name nothing else."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.claims import MARK, MAX_CLAIM_BYTES, Claim, from_bytes, is_claim, to_bytes
from schemas.codec import decode, encode
from schemas.common import Record
from schemas.errors import ClaimError, DiskFullError, RecordError, SettingsError
from schemas.process import BrokerSettings
from schemas.run import DeadLetter
from schemas.topics import MAX_MESSAGE_BYTES, Topic

CONTENT = b"secret" * 10


def letter(size: int, run_id: str = "run-1") -> DeadLetter:
    return DeadLetter(run_id=run_id, event_id="letter", origin_topic="t", partition=0, offset=0, reason="", data=bytes(size))


def place(folder: Path | str) -> BrokerSettings:
    return BrokerSettings(claims=str(folder))


def claim_of(data: bytes) -> Claim:
    return msgspec.msgpack.decode(data.removeprefix(MARK), type=Claim)


def forged(**changes: Any) -> bytes:
    """A claim on what the test wants to be read."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    values: dict[str, Any] = {"run_id": "run-1", "event_id": "e", "path": f"run-1/{digest}", "sha256": digest}
    return MARK + msgspec.msgpack.encode(Claim(**{**values, "size_bytes": MAX_MESSAGE_BYTES + 1, **changes}))


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_a_large_record_comes_back_equal_and_a_second_write_changes_nothing(tmp_path: Path, scheme: str) -> None:
    record, broker = letter(MAX_MESSAGE_BYTES), place(f"{scheme}{tmp_path / 'claims'}")
    data = to_bytes(record, broker)
    assert is_claim(data)
    assert len(data) < 1000
    assert from_bytes(Topic.DEAD_LETTER, data, broker, "run-1") == record
    assert to_bytes(record, broker) == data
    if scheme != "memory://":
        (file,) = (path for path in (tmp_path / "claims").rglob("*") if path.is_file())
        assert file == tmp_path / "claims" / claim_of(data).path


def test_a_record_that_fits_is_itself_and_stands_nowhere_else(tmp_path: Path) -> None:
    record = letter(1000)
    assert to_bytes(record, place(tmp_path / "claims")) == encode(record)
    assert not (tmp_path / "claims").exists()
    assert from_bytes(Topic.DEAD_LETTER, encode(record), BrokerSettings()) == record


def test_without_a_place_a_large_record_is_refused_with_both_ways_out() -> None:
    with pytest.raises(RecordError, match=r"at most 8388608 go into one message\. .*units.* or name a place with `claims`"):
        to_bytes(letter(MAX_MESSAGE_BYTES), BrokerSettings())


def test_a_content_of_another_run_is_not_read(tmp_path: Path) -> None:
    data = to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path))
    (tmp_path / claim_of(data).path).unlink()
    found = from_bytes(Topic.DEAD_LETTER, data, place(tmp_path), "run-2")
    assert (type(found), found.run_id, found.event_id) == (Record, "run-1", "letter")


def test_code_without_claims_takes_one_for_no_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="are no DeadLetter"):
        decode(Topic.DEAD_LETTER, to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path)))


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "../outside"},
        {"path": "run-1/../../outside"},
        {"path": "/etc/passwd"},
        {"path": "s3://bucket/run-1/x"},
        {"path": "file:///etc/passwd"},
        {"path": "run-2/" + hashlib.sha256(CONTENT).hexdigest()},
        {"run_id": "..", "path": "../" + hashlib.sha256(CONTENT).hexdigest()},
        {"run_id": "a/b", "path": "a/b/" + hashlib.sha256(CONTENT).hexdigest()},
        {"sha256": "x", "path": "run-1/x"},
        {"sha256": "../" * 3, "path": "run-1/" + "../" * 3},
        {"size_bytes": MAX_CLAIM_BYTES + 1},
        {"size_bytes": 10},
        {"size_bytes": -1},
    ],
)
def test_a_forged_claim_is_a_bad_record_and_nothing_is_opened(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", lambda *_, **__: pytest.fail("a file was opened"))
    with pytest.raises(RecordError, match=r"a claim (names|tells)"):
        from_bytes(Topic.DEAD_LETTER, forged(**changes), place(tmp_path), "run-1")


@pytest.mark.parametrize("data", [MARK, MARK + b"\xff", MARK + b"\x80", MARK + msgspec.msgpack.encode({"path": 3})])
def test_a_broken_claim_is_a_bad_record(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RecordError, match="are no claim"):
        from_bytes(Topic.DEAD_LETTER, data, place(tmp_path))


@pytest.mark.parametrize("link", ["file", "folder"])
def test_links_below_the_place_are_not_followed(tmp_path: Path, link: str) -> None:
    folder, outside = tmp_path / "claims", tmp_path / "outside"
    data = to_bytes(letter(MAX_MESSAGE_BYTES), place(folder))
    file = folder / claim_of(data).path
    if link == "file":
        file.rename(outside)
        file.symlink_to(outside)
    else:
        file.parent.rename(outside)
        file.parent.symlink_to(outside)
    with pytest.raises(ClaimError, match="can't be read"):
        from_bytes(Topic.DEAD_LETTER, data, place(folder))


def test_a_pipe_in_a_contents_place_does_not_hang_the_reader(tmp_path: Path) -> None:
    data = to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path))
    file = tmp_path / claim_of(data).path
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ClaimError):
        from_bytes(Topic.DEAD_LETTER, data, place(tmp_path))


@pytest.mark.parametrize("change", ["one byte", "cut off", "longer"])
def test_a_content_that_differs_from_its_digest_stops_with_its_place(tmp_path: Path, change: str) -> None:
    data = to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path))
    file = tmp_path / claim_of(data).path
    whole = file.read_bytes()
    file.write_bytes({"one byte": whole[:-1] + b"x", "cut off": whole[:-1], "longer": whole + b"x"}[change])
    with pytest.raises(ClaimError, match=rf"{file} does not hold the \d+ bytes that were claimed\. Restore the file"):
        from_bytes(Topic.DEAD_LETTER, data, place(tmp_path))
    assert to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path)) == data
    assert from_bytes(Topic.DEAD_LETTER, data, place(tmp_path)) == letter(MAX_MESSAGE_BYTES)


def test_a_missing_content_and_a_reader_without_a_place_each_stop_with_the_fix(tmp_path: Path) -> None:
    data = to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path))
    with pytest.raises(ClaimError, match=r"record letter of spade-dead-letter .* no place for such\. .*`claims` in the broker"):
        from_bytes(Topic.DEAD_LETTER, data, BrokerSettings())
    with pytest.raises(ClaimError, match=r"elsewhere/run-1/[0-9a-f]{64} can't be read \(No such file"):
        from_bytes(Topic.DEAD_LETTER, data, place(tmp_path / "elsewhere"))


def test_a_full_disk_is_told_as_such_and_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="no space left to write a large record below"):
        to_bytes(letter(MAX_MESSAGE_BYTES), place(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_scheme_that_nothing_here_knows_is_told_at_once() -> None:
    with pytest.raises(SettingsError, match="claims: nowhere://x can't be used"):
        to_bytes(letter(MAX_MESSAGE_BYTES), place("nowhere://x"))
