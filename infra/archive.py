"""A finished run's records as files: the format, its writer and its reader.

In: records in the order of RecordSource.scan. Out: a folder with one file a topic and partition, TOPIC-PARTITION.zst, and
manifest.json. Called by infra/archiving, `spade replay` and `spade memory rebuild`. The folder is there whole or not at all.

A file is a zstd stream of MAGIC and records; a record is HEADER (bytes of the body, their crc32), then the body: PLACE
(partition, offset, timestamp in ms, bytes of the key or -1), key, value as it stood in the log; what the log held by claim check
(infra/claims.py) stands here itself. The manifest holds each file's counts and sha256, and its own. Reading checks the file's
digest first, then each record: what was cut off or changed raises ArchiveError with the file and the place, before anything of
that file is used. Not covered: an archive that someone wrote anew, digests and all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec

from infra.claims import MAX_CLAIM_BYTES
from infra.durable import Draft, draft_folder, write_durably, write_error
from infra.recordsource import LogRecord
from schemas.codec import decode
from schemas.errors import ArchiveError, DiskFullError, RecordError, SettingsError
from schemas.topics import BY_WIRE, Topic

if TYPE_CHECKING:
    import zstandard

FORMAT = 1
MAGIC = b"SPADE ARCHIVE 1\n"
MANIFEST = "manifest.json"
HEADER, PLACE = struct.Struct("<II"), struct.Struct("<iqqi")
LARGEST_BODY = PLACE.size + 64 * 1024 + MAX_CLAIM_BYTES  # a key is an id
LEVEL = 9  # zstd
RESTORE = "Restore it from a copy, or archive the run again while the log holds it"


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's partition in an archive."""

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int
    record_bytes: int  # keys and values
    file_bytes: int
    sha256: str  # of the file

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.topic}-{self.partition}.zst"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds. `sha256` is over the rest, encoded as JSON."""

    format: int
    run_id: str
    recipe_name: str
    created_at: float  # seconds since the epoch
    source: str
    records: int
    files: list[ArchivedFile]
    sha256: str = ""

    def digest(self) -> str:
        """What `sha256` has to be."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, sha256=""))).hexdigest()


class _Part:
    """One open file of an archive that is written."""

    def __init__(self, folder: Path, topic: Topic, partition: int) -> None:
        import zstandard

        self.topic, self.partition = topic, partition
        self.records = self.record_bytes = 0
        self.first = self.last = -1
        self._path = folder / f"{topic.wire}-{partition}.zst"
        self._file = self._path.open("wb")
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._stream: Any = compressor.stream_writer(self._file, closefd=False)
        self._stream.write(MAGIC)

    def write(self, one: LogRecord) -> None:
        key = one.key or b""
        place = PLACE.pack(one.partition, one.offset, one.timestamp_ms, -1 if one.key is None else len(key))
        body = place + key + one.data
        self._stream.write(HEADER.pack(len(body), zlib.crc32(body)) + body)
        self.first = one.offset if self.first < 0 else self.first
        self.last = one.offset
        self.records += 1
        self.record_bytes += len(key) + len(one.data)

    def finish(self) -> ArchivedFile:
        self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ArchivedFile(
            topic=self.topic.wire,
            partition=self.partition,
            records=self.records,
            first_offset=self.first,
            last_offset=self.last,
            record_bytes=self.record_bytes,
            file_bytes=self._path.stat().st_size,
            sha256=_sha256(self._path),
        )

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class ArchiveWriter:
    """Writes an archive to a new folder; a context manager. Without `finish`, nothing is left of it.

    Raises SettingsError (the folder is taken), DiskFullError, ArchiveError (other file errors). One thread's object.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SettingsError(f"--out {folder} exists and is not an empty folder", "Name a new one")
        self.folder = folder
        self._holder = contextlib.ExitStack()
        self._draft = Draft(folder)  # until entered
        self._part: _Part | None = None
        self._files: list[ArchivedFile] = []

    def __enter__(self) -> Self:
        with self._told():
            self._draft = self._holder.enter_context(draft_folder(self.folder.parent, self.folder.name))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._part is not None:
            self._part.abandon()
        self._holder.close()

    def write(self, one: LogRecord) -> None:
        """Adds a record; those of one partition follow each other."""
        with self._told():
            if self._part is None or (self._part.topic, self._part.partition) != (one.topic, one.partition):
                self._close_part()
                self._part = _Part(self._draft.folder, one.topic, one.partition)
            self._part.write(one)

    def finish(self, run_id: str, recipe_name: str, source: str, created_at: float) -> Manifest:
        """Writes the manifest and puts the folder in its place; durable when this returns."""
        with self._told():
            self._close_part()
            manifest = Manifest(
                format=FORMAT,
                run_id=run_id,
                recipe_name=recipe_name,
                created_at=created_at,
                source=source,
                records=sum(one.records for one in self._files),
                files=self._files,
            )
            manifest = msgspec.structs.replace(manifest, sha256=manifest.digest())
            write_durably(self._draft.folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            self._draft.keep(self.folder)
        return manifest

    def _close_part(self) -> None:
        if self._part is not None:
            self._files.append(self._part.finish())
            self._part = None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            told = write_error(problem, f"the archive {self.folder}")
            raise told if isinstance(told, DiskFullError) else ArchiveError(told.cause, told.fix) from problem


class Archive:
    """A folder that ArchiveWriter wrote, as a RecordSource. Raises ArchiveError where it is none or its manifest was changed."""

    def __init__(self, folder: Path) -> None:
        self.name = f"the archive {folder}"
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.unreadable: Counter[tuple[str, int]] = Counter()  # an archive has none
        self._whole: set[str] = set()  # files whose digest was checked

    def scan(self, topics: Sequence[Topic], run_id: str = "") -> Iterator[LogRecord]:
        """See RecordSource.scan."""
        if run_id and run_id != self.manifest.run_id:
            return
        held = {(one.topic, one.partition): one for one in self.manifest.files}
        for topic in topics:
            for place in sorted(place for place in held if place[0] == topic.wire):
                yield from self._read(held[place], topic)

    def _read(self, told: ArchivedFile, topic: Topic) -> Iterator[LogRecord]:
        path = self.folder / told.file
        try:
            if told.file not in self._whole and _sha256(path) != told.sha256:
                raise self._damage(told, topic, path)
            self._whole.add(told.file)
            yield from _records(told, topic, path)
        except OSError as problem:
            raise ArchiveError(f"archive file {path} can't be read ({problem.strerror})", RESTORE) from problem

    @staticmethod
    def _damage(told: ArchivedFile, topic: Topic, path: Path) -> ArchiveError:
        """The error of a file whose digest differs: at the first record that is not as it was written."""
        try:
            for _ in _records(told, topic, path):
                pass
        except ArchiveError as found:
            return found
        size = path.stat().st_size
        return ArchiveError(
            f"archive file {path} has not the sha256 of its manifest, though each record can be read; it has {size} bytes of "
            f"{told.file_bytes}",
            RESTORE,
        )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an archive, checked. Raises ArchiveError."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as problem:
        raise ArchiveError(
            f"{folder} is no archive: {MANIFEST} can't be read ({problem.strerror})", "Name a folder of `spade archive`"
        ) from problem
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ArchiveError(f"{path} is cut off or changed: {problem}", RESTORE) from problem
    if manifest.format != FORMAT:
        raise ArchiveError(f"{path} has format {manifest.format}, this code knows {FORMAT}", "Use the spade that wrote it")
    if manifest.sha256 != manifest.digest():
        raise ArchiveError(f"{path} was changed: its sha256 is not that of its contents", RESTORE)
    unknown = [one.topic for one in manifest.files if one.topic not in BY_WIRE or one.partition < 0]
    if unknown:
        raise ArchiveError(f"{path} names {unknown[0]!a}, which is no topic of ours", "Use the spade that wrote it")
    return manifest


def _records(told: ArchivedFile, topic: Topic, path: Path) -> Iterator[LogRecord]:
    """The records of one file, each checked. Raises ArchiveError at the first that is not as it was written, OSError."""
    import zstandard

    number, place = 0, "its beginning"
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=False) as stream:
        try:
            if _take(stream, len(MAGIC)) != MAGIC:
                raise ValueError("it does not begin as an archive's file does")
            while header := stream.read(HEADER.size):
                one = _record(header, stream, topic, told.partition)
                number += 1
                place = f"record {number} (offset {one.offset})"
                yield one
            if stream.read(1) or file.read(1) or number != told.records:
                raise ValueError(f"{number} records where its manifest names {told.records}, or bytes behind them")
        except (ValueError, RecordError, zstandard.ZstdError) as problem:
            raise ArchiveError(
                f"archive file {path} is damaged after {place}, within its first {file.tell()} of {told.file_bytes} bytes: "
                f"{problem}",
                RESTORE,
            ) from problem


def _record(header: bytes, stream: zstandard.ZstdDecompressionReader, topic: Topic, partition: int) -> LogRecord:
    if len(header) < HEADER.size:
        raise ValueError("it ends within a record")
    length, crc = HEADER.unpack(header)
    if not PLACE.size <= length <= LARGEST_BODY:
        raise ValueError(f"a record of {length} bytes can't be")
    body = _take(stream, length)
    if zlib.crc32(body) != crc:
        raise ValueError("the next record's checksum differs")
    where, offset, timestamp_ms, key_length = PLACE.unpack_from(body)
    start = PLACE.size + max(key_length, 0)
    if where != partition or start > length:
        raise ValueError(f"the next record is of partition {where} or has no room for its key")
    data = body[start:]
    key = None if key_length < 0 else body[PLACE.size : start]
    return LogRecord(topic, partition, offset, timestamp_ms, key, data, decode(topic, data))


def _take(stream: IO[bytes] | Any, length: int) -> bytes:
    """Exactly so many bytes."""
    data: bytes = stream.read(length)
    if len(data) < length:
        raise ValueError("it ends within a record")
    return data


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
