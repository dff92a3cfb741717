"""Claim checks: a record too large for a message stands as a file below a configured place, and the topic carries a small claim.

In: records, and bytes that the log holds. Out: bytes for the log, and records. Called wherever the log is written or read. The
place is BrokerSettings.claims, a folder or an fsspec URL; "": larger records are refused. A content is named by its run and its
digest, RUN/SHA256, and durable before its claim is sent, so a repeated write changes nothing. What is covered: a claim can name
nothing but such a file below this process's own place (no other path, scheme or place, no link), of the size and sha256 that it
tells, up to MAX_CLAIM_BYTES. Not covered: whoever may write to both the place and the log. Blocks for the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from infra.durable import DRAFT, flush_folder, write_error
from schemas.codec import decode, encode, too_large
from schemas.common import Part, Record
from schemas.errors import ClaimError, DiskFullError, RecordError, SettingsError
from schemas.process import BrokerSettings
from schemas.topics import MAX_MESSAGE_BYTES, Topic

MARK: Final = b"\xc1SPADE CLAIM 1\n"  # msgpack never begins with this byte: no record looks like a claim
MAX_CLAIM_BYTES: Final = 256 * 1024 * 1024
LARGEST_CLAIM: Final = 4096  # bytes of a claim itself
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
RESTORE = "Restore the file, or mount the place that `claims` in the broker's TOML file names"


class Claim(Part, frozen=True, kw_only=True):
    """What the topic holds in place of the record."""

    run_id: str
    event_id: str
    path: str  # below the place: RUN/SHA256
    sha256: str
    size_bytes: int


class Shelf(Protocol):
    """Where contents stand; `place` tells people where."""

    place: str

    def put(self, path: str, data: bytes) -> None:
        """Makes the content durable; what stands there whole already stays. Raises DiskFullError, ClaimError."""
        ...

    def get(self, path: str, limit_bytes: int) -> bytes:
        """At most `limit_bytes` of the content. Raises OSError."""
        ...


class FolderShelf:
    """A local or mounted folder. Follows no link below it."""

    def __init__(self, folder: str) -> None:
        self.place = str(Path(folder).expanduser().absolute())

    def put(self, path: str, data: bytes) -> None:
        """See Shelf."""
        target = Path(self.place) / path
        draft = ""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if self._is_whole(path, data):
                return
            descriptor, draft = tempfile.mkstemp(prefix=DRAFT, dir=target.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).chmod(0o644)  # readers may run as another user
            Path(draft).rename(target)
            flush_folder(target.parent)
        except OSError as problem:
            if draft:
                Path(draft).unlink(missing_ok=True)
            told = write_error(problem, f"a large record below {self.place}")
            raise told if isinstance(told, DiskFullError) else ClaimError(told.cause, told.fix) from problem

    def get(self, path: str, limit_bytes: int) -> bytes:
        """See Shelf."""
        run, _, name = path.partition("/")
        folder = os.open(Path(self.place) / run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit_bytes)

    def _is_whole(self, path: str, data: bytes) -> bool:
        try:
            return self.get(path, len(data) + 1) == data
        except OSError:
            return False


class ObjectShelf:
    """Any other fsspec place, such as s3://bucket/prefix: an object appears whole or not at all. Raises SettingsError."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.place = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.place)
        except (ImportError, ValueError) as problem:
            raise SettingsError(f"claims: {url} can't be used: {problem}", "Name a folder, or install what it needs") from problem

    def put(self, path: str, data: bytes) -> None:
        """See Shelf."""
        target = f"{self._root}/{path}"
        try:
            if self._files.exists(target) and int(self._files.info(target)["size"]) == len(data):
                return
            self._files.pipe_file(target, data)
        except OSError as problem:
            raise ClaimError(f"can't write a large record to {self.place}/{path}: {problem}", "Check the place") from problem

    def get(self, path: str, limit_bytes: int) -> bytes:
        """See Shelf."""
        data: Any = self._files.cat_file(f"{self._root}/{path}", end=limit_bytes)
        return bytes(data)


def open_shelf(place: str) -> Shelf:
    """The shelf of a configured place. Raises SettingsError."""
    local = place.removeprefix("file://")
    return ObjectShelf(local) if "://" in local else FolderShelf(local)


def to_bytes(record: Record, settings: BrokerSettings) -> bytes:
    """What the topic holds of a record: itself, or a claim whose content is durable now.

    Raises RecordError (too large, and no place for it or beyond MAX_CLAIM_BYTES), DiskFullError, ClaimError, SettingsError.
    """
    data = encoded(record, settings)
    return data if len(data) <= MAX_MESSAGE_BYTES else set_apart(record, data, settings)


def encoded(record: Record, settings: BrokerSettings) -> bytes:
    """The record's own bytes, which may be too large for a message where there is a place for them. Never blocks."""
    return encode(record, MAX_CLAIM_BYTES if settings.claims else MAX_MESSAGE_BYTES)


def set_apart(record: Record, data: bytes, settings: BrokerSettings) -> bytes:
    """Makes the content of a large record durable; its claim. Raises as `to_bytes`."""
    if not _RUN.fullmatch(record.run_id):
        raise too_large(record, len(data), MAX_MESSAGE_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    claim = Claim(
        run_id=record.run_id,
        event_id=record.event_id,
        path=f"{record.run_id}/{digest}",
        sha256=digest,
        size_bytes=len(data),
    )
    open_shelf(settings.claims).put(claim.path, data)
    return MARK + msgspec.msgpack.encode(claim)


def is_claim(data: bytes) -> bool:
    """Whether these bytes of a topic are a claim: its record lies elsewhere, and reading it blocks."""
    return data.startswith(MARK)


def from_bytes(topic: Topic | str, data: bytes, settings: BrokerSettings, run_id: str = "") -> Record:
    """The record that a topic's bytes hold or claim. Of another run than `run_id` ("": any) a claim gives a bare Record.

    Raises RecordError for bytes that are no record or no claim of ours, ClaimError where its content can't be had.
    """
    content = content_of(topic, data, settings, run_id)
    return claimed(data) if content is None else decode(topic, content)


def claimed(data: bytes) -> Record:
    """Whose record a claim stands for: a bare Record, without the content. Raises RecordError."""
    claim = _claim(data)
    return Record(run_id=claim.run_id, event_id=claim.event_id)


def content_of(topic: Topic | str, data: bytes, settings: BrokerSettings, run_id: str = "") -> bytes | None:
    """The record's own bytes; None where they are claimed by another run than `run_id`. Raises as `from_bytes`."""
    if not is_claim(data):
        return data
    claim = _claim(data)
    if run_id and claim.run_id != run_id:
        return None
    wire = topic if isinstance(topic, str) else topic.wire
    what = f"record {claim.event_id} of {wire} was too large for a message and stands apart"
    if not settings.claims:
        raise ClaimError(f"{what}, and this process knows no place for such", RESTORE)
    shelf = open_shelf(settings.claims)
    where = f"{shelf.place}/{claim.path}"
    try:
        content = shelf.get(claim.path, claim.size_bytes + 1)
    except OSError as problem:
        raise ClaimError(f"{what}: {where} can't be read ({problem.strerror or problem})", RESTORE) from problem
    if len(content) != claim.size_bytes or hashlib.sha256(content).hexdigest() != claim.sha256:
        raise ClaimError(f"{what}: {where} does not hold the {claim.size_bytes} bytes that were claimed", RESTORE)
    return content


def _claim(data: bytes) -> Claim:
    """The claim in a topic's bytes. Raises RecordError for one that names anything but a content of its own run."""
    try:
        claim = msgspec.msgpack.decode(data[len(MARK) : LARGEST_CLAIM], type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise RecordError(f"{len(data)} bytes are no claim: {problem}") from problem
    named = _RUN.fullmatch(claim.run_id) and _DIGEST.fullmatch(claim.sha256)
    if not named or claim.path != f"{claim.run_id}/{claim.sha256}":
        raise RecordError(f"a claim names {claim.path[:200]!a}, which is no place of run {claim.run_id[:100]!a} and its digest")
    if not MAX_MESSAGE_BYTES < claim.size_bytes <= MAX_CLAIM_BYTES:
        raise RecordError(f"a claim tells {claim.size_bytes} bytes: between {MAX_MESSAGE_BYTES} and {MAX_CLAIM_BYTES} can be")
    return claim
