"""An archive gives back what was written or names what is wrong with it, and only a whole finished run becomes one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.archive import MANIFEST, Archive, ArchiveWriter, Manifest
from infra.archiving import archive_run, verify
from infra.recordsource import LogRecord
from schemas.codec import encode
from schemas.common import Record, Reference
from schemas.errors import ArchiveError, DiskFullError, ReferenceGoneError, SettingsError
from schemas.run import DeadLetter, RunEnding, RunStarted
from schemas.topics import Topic
from schemas.train import BatchReady
from tests.fakes.recordsource import ListSource

OneOfEach = Callable[[str], list[tuple[Topic, Record]]]


def write(folder: Path, records: list[LogRecord], run_id: str = "r") -> Manifest:
    with ArchiveWriter(folder) as writer:
        for one in records:
            writer.write(one)
        return writer.finish(run_id, "tiny", "a test", 5.0)


def letters(count: int, size: int = 40) -> list[LogRecord]:
    """Records of one partition, with offsets that jump."""
    found = []
    for number in range(count):
        data = bytes((number * 7 + byte) % 251 for byte in range(size))
        letter = DeadLetter(
            run_id="r", event_id=f"e{number}", origin_topic="t", partition=0, offset=number, reason="x", data=data
        )
        key = None if number % 3 == 0 else b"k" * (number % 3)
        found.append(LogRecord(Topic.DEAD_LETTER, 2, 10 + 3 * number, 77 + number, key, encode(letter), letter))
    return found


def finished_run(one_of_each: OneOfEach, run_id: str) -> ListSource:
    """A run with a record of every topic; its batch refers to its episode."""
    source = ListSource()
    for _, record in one_of_each(run_id):
        if not isinstance(record, BatchReady):
            source.add(record, 1)
    episode = next(one for one in source.held if one.topic is Topic.ROLLOUT_FINISHED)
    batch = next(record for _, record in one_of_each(run_id) if isinstance(record, BatchReady))
    place = Reference(topic=episode.topic.wire, partition=1, offset=episode.offset, id=episode.record.event_id)
    source.add(msgspec.structs.replace(batch, samples=[msgspec.structs.replace(batch.samples[0], reference=place)]), 1)
    return source


def test_what_was_written_comes_back_in_order_with_places_keys_and_bytes(tmp_path: Path) -> None:
    records = letters(50)
    manifest = write(tmp_path / "a", records)
    archive = Archive(tmp_path / "a")
    assert list(archive.scan([Topic.DEAD_LETTER])) == records
    assert list(archive.scan([Topic.RUN_ENDING])) == []
    assert list(archive.scan([Topic.DEAD_LETTER], "another run")) == []
    (part,) = manifest.files
    assert (part.records, part.first_offset, part.last_offset) == (50, 10, 157)
    assert archive.manifest == manifest
    assert (manifest.run_id, manifest.records) == ("r", 50)


def test_a_file_is_an_ordinary_zstd_stream(tmp_path: Path) -> None:
    import zstandard

    write(tmp_path / "a", letters(3))
    plain = zstandard.ZstdDecompressor().decompressobj().decompress((tmp_path / "a" / "spade-dead-letter-2.zst").read_bytes())
    assert plain.startswith(b"SPADE ARCHIVE 1\n")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_bit_and_no_cut_goes_unseen_and_the_file_is_named(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "a"
    if not folder.exists():
        write(folder, letters(40))
    path = folder / "spade-dead-letter-2.zst"
    whole = path.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "gone"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    if kind == "flip":
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        damaged = damaged[:place]
    else:
        damaged += b"\0"
    path.write_bytes(damaged)
    if kind == "gone":
        path.unlink()
    try:
        with pytest.raises(ArchiveError, match=r"spade-dead-letter-2\.zst"):
            next(Archive(folder).scan([Topic.DEAD_LETTER]))
    finally:
        path.write_bytes(whole)


def test_the_error_tells_the_record_behind_which_the_damage_lies(tmp_path: Path) -> None:
    write(tmp_path / "a", letters(2000, size=400))
    path = tmp_path / "a" / "spade-dead-letter-2.zst"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchiveError, match=r"damaged after record [1-9]\d* \(offset \d+\), within its first \d+ of \d+ bytes"):
        next(Archive(tmp_path / "a").scan([Topic.DEAD_LETTER]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"r"', '"s"'), "sha256 is not that of its contents"),
        (lambda text: text.replace('"partition": 2', '"partition": 3'), "sha256 is not that of its contents"),
        (lambda text: text[:-30], "cut off or changed"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "has format 2, this code knows 1"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    write(tmp_path / "a", letters(3))
    path = tmp_path / "a" / MANIFEST
    path.write_text(change(path.read_text()))
    with pytest.raises(ArchiveError, match=message) as found:
        Archive(tmp_path / "a")
    assert str(path) in str(found.value)


def test_a_manifest_that_names_another_place_reads_nothing_outside_the_folder(tmp_path: Path) -> None:
    manifest = write(tmp_path / "a", letters(3))
    forged = msgspec.structs.replace(manifest, files=[msgspec.structs.replace(manifest.files[0], topic="../../etc/passwd")])
    sealed = msgspec.structs.replace(forged, sha256=forged.digest())
    (tmp_path / "a" / MANIFEST).write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(ArchiveError, match=r"'\.\./\.\./etc/passwd', which is no topic of ours"):
        Archive(tmp_path / "a")


def test_a_folder_without_manifest_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"is no archive: manifest\.json can't be read"):
        Archive(tmp_path)


def test_a_taken_folder_is_refused_and_an_empty_one_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", letters(1))
    with pytest.raises(SettingsError, match="not an empty folder"):
        write(tmp_path / "a", letters(1))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="the archive"):
        write(tmp_path / "a", letters(3))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_written_whole_and_no_other_runs_records(tmp_path: Path, one_of_each: OneOfEach) -> None:
    source = finished_run(one_of_each, "r")
    own = list(source.held)
    for _, record in one_of_each("other"):
        source.add(record, 1)
    done = archive_run(source, "r", tmp_path / "a", 9.0)
    again = Archive(tmp_path / "a")
    assert done.manifest.records == len(own)
    assert sorted(map(repr, again.scan(list(Topic)))) == sorted(map(repr, own))
    assert again.manifest.recipe_name == "recipe_name"
    assert done.deletable[Topic.ROLLOUT_FINISHED.wire, 1] == 1
    assert done.mixed == 0


def test_what_the_log_could_forget_ends_before_another_runs_first_record(tmp_path: Path, one_of_each: OneOfEach) -> None:
    source = ListSource([(1, RunEnding(run_id="other", event_id="e", last_generation=0, cause=""))])
    for one in finished_run(one_of_each, "r").held:
        source.add(one.record, 1)
    source.unreadable[Topic.RUN_STARTED.wire, 1] = 1
    done = archive_run(source, "r", tmp_path / "a", 9.0)
    assert (Topic.RUN_ENDING.wire, 1) not in done.deletable
    assert (Topic.RUN_STARTED.wire, 1) not in done.deletable
    assert done.mixed == 2


def test_an_unfinished_run_is_refused_with_how_far_it_is(tmp_path: Path, one_of_each: OneOfEach) -> None:
    source = finished_run(one_of_each, "r")
    source.held = [one for one in source.held if one.topic is not Topic.RUN_FINISHED]
    with pytest.raises(SettingsError, match="run r has not finished: 1 of 3 steps are trained, and it is ending"):
        archive_run(source, "r", tmp_path / "a", 9.0)
    with pytest.raises(SettingsError, match="holds no run s"):
        archive_run(source, "s", tmp_path / "a", 9.0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_trained_samples_are_gone_is_refused(tmp_path: Path, one_of_each: OneOfEach) -> None:
    source = finished_run(one_of_each, "r")
    source.held = [one for one in source.held if one.topic is not Topic.ROLLOUT_FINISHED]
    with pytest.raises(ReferenceGoneError, match="1 of spade-rollout-finished that run r has trained"):
        archive_run(source, "r", tmp_path / "a", 9.0)
    assert list(tmp_path.iterdir()) == []


def test_reading_back_compares_counts_and_digests(tmp_path: Path) -> None:
    write(tmp_path / "a", letters(3))
    with pytest.raises(ArchiveError, match="spade-dead-letter:2 reads back as 3 records, the log held 4"):
        verify(Archive(tmp_path / "a"), {("spade-dead-letter", 2): (4, "")})
    with pytest.raises(ArchiveError, match="spade-batch-ready:0 reads back as 0 records"):
        verify(Archive(tmp_path / "a"), {("spade-batch-ready", 0): (1, "")})


def test_a_record_of_no_topic_stops_the_reading(tmp_path: Path, one_of_each: OneOfEach) -> None:
    started: Any = next(record for _, record in one_of_each("r") if isinstance(record, RunStarted))
    wrong = LogRecord(Topic.RUN_STARTED, 0, 0, 0, None, b"\xff" * 9, started)
    write(tmp_path / "a", [wrong])
    with pytest.raises(ArchiveError, match=r"spade-run-started-0\.zst is damaged after its beginning.*are no RunStarted"):
        next(Archive(tmp_path / "a").scan([Topic.RUN_STARTED]))
