"""Moves a finished run's records from the log to an archive, and proves that the copy is whole.

In: a source, a run, a folder. Out: the archive, and what the log could now forget. Called by `spade archive`. Nothing is deleted
here: topics are shared by runs, so a person decides. Blocks while it reads; raises SettingsError for a run that has not finished,
ReferenceGoneError where the log has lost what the run trained, and what the archive and the broker raise.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra.archive import Archive, ArchiveWriter, Manifest
from infra.claims import RESTORE
from infra.recordsource import LogRecord, RecordSource
from schemas.common import Record, Reference
from schemas.errors import ArchiveError, ClaimError, ReferenceGoneError, SettingsError
from schemas.run import RunEnding, RunFinished, RunStarted
from schemas.topics import Topic
from schemas.train import BatchReady, StepFinished

TRAINED = (Topic.ENV_PROPOSED, Topic.ROLLOUT_FINISHED)  # what batches refer to
SAID_EVERY = 20_000  # records


@dataclass
class _Seen:
    """One partition of the log, as the scan for an archive saw it."""

    records: int = 0  # of the run
    digest: str = ""  # over their places and bytes, in order
    only_ours: int | None = None  # offset up to which every record is the run's, from the partition's beginning
    mixed: bool = False  # a record of another run was seen
    places: set[int] = field(default_factory=set)  # of what batches may refer to


@dataclass(frozen=True)
class Archived:
    """An archive that was written and read back."""

    manifest: Manifest
    deletable: dict[tuple[str, int], int]  # (topic, partition) -> offset before which only this run's records stand
    mixed: int  # partitions whose first record is another run's, or that hold bytes which nobody can read


def archive_run(
    source: RecordSource, run_id: str, folder: Path, now: float, say: Callable[[str], None] = lambda line: None
) -> Archived:
    """Writes the run's records of every topic to `folder` and compares what can be read there with what the log held.

    `now`: seconds since the epoch, told in the manifest.
    """
    started = finished_run(source, run_id)
    seen: dict[tuple[str, int], _Seen] = {}
    wanted: list[Reference] = []
    with ArchiveWriter(folder) as writer:
        for count, one in enumerate(source.scan(list(Topic)), 1):
            part = seen.setdefault((one.topic.wire, one.partition), _Seen())
            _look(part, one, run_id)
            if one.record.run_id == run_id:
                if one.is_bare:
                    raise ClaimError(f"record {one.record.event_id} of {one.topic.wire} stands apart and can't be read", RESTORE)
                writer.write(one)
                if isinstance(one.record, BatchReady):
                    wanted += [sample.reference for sample in one.record.samples]
            if count % SAID_EVERY == 0:
                say(f"{count} records of the log read ...")
        _require_trained(seen, wanted, run_id)
        manifest = writer.finish(run_id, started.recipe_name, source.name, now)
    say("reading it back ...")
    verify(Archive(folder), {place: (part.records, part.digest) for place, part in seen.items() if part.records})
    deletable = {
        place: part.only_ours
        for place, part in seen.items()
        if part.only_ours is not None and place not in source.unreadable  # nobody knows whose such bytes are
    }
    return Archived(manifest, deletable, sum(bool(part.records) for part in seen.values()) - len(deletable))


def finished_run(source: RecordSource, run_id: str) -> RunStarted:
    """The first record of a run that has finished. Raises SettingsError that says how far it is."""
    topics = (Topic.RUN_STARTED, Topic.RUN_FINISHED, Topic.RUN_ENDING, Topic.STEP_FINISHED)
    first: dict[type[Record], Record] = {}
    steps: set[int] = set()
    for one in source.scan(topics, run_id):
        first.setdefault(type(one.record), one.record)
        if isinstance(one.record, StepFinished):
            steps.add(one.record.step)
    started = first.get(RunStarted)
    if not isinstance(started, RunStarted):
        raise SettingsError(f"{source.name} holds no run {run_id}", "`spade status` names the newest; give its whole id")
    if RunFinished not in first:
        ending = first.get(RunEnding)
        told = f", and it is ending ({ending.cause})" if isinstance(ending, RunEnding) else ""
        raise SettingsError(
            f"run {run_id} has not finished: {len(steps)} of {started.steps} steps are trained{told}, and its topics must keep "
            "everything until its last record stands",
            "Let it finish first",
        )
    return started


def verify(archive: Archive, expected: dict[tuple[str, int], tuple[int, str]]) -> None:
    """Reads all of an archive and compares count and digest of every partition. Raises ArchiveError naming one that differs."""
    found: dict[tuple[str, int], _Seen] = {}
    for one in archive.scan(list(Topic)):
        _look(found.setdefault((one.topic.wire, one.partition), _Seen()), one, archive.manifest.run_id)
    held = {place: (part.records, part.digest) for place, part in found.items()}
    for place in sorted(expected.keys() | held.keys()):
        if expected.get(place) != held.get(place):
            raise ArchiveError(
                f"archive {archive.folder}: {place[0]}:{place[1]} reads back as {held.get(place, (0, ''))[0]} records, the log "
                f"held {expected.get(place, (0, ''))[0]}, or their digests differ",
                "Remove it and archive the run again",
            )


def _look(part: _Seen, one: LogRecord, run_id: str) -> None:
    """Counts a record in; a partition's records come in order."""
    if one.record.run_id != run_id:
        part.mixed = True
        return
    if not part.mixed:
        part.only_ours = one.offset + 1
    part.records += 1
    told = f"{part.digest}\x1f{one.offset}\x1f{one.timestamp_ms}\x1f{one.key!r}\x1f".encode()
    part.digest = hashlib.sha256(told + one.data).hexdigest()
    if one.topic in TRAINED:
        part.places.add(one.offset)


def _require_trained(seen: dict[tuple[str, int], _Seen], wanted: list[Reference], run_id: str) -> None:
    """Raises ReferenceGoneError where what a batch refers to is not among the run's records."""
    gone = [one for one in wanted if one.offset not in seen.get((one.topic, one.partition), _Seen()).places]
    if gone:
        by_topic = ", ".join(f"{count} of {topic}" for topic, count in sorted(Counter(one.topic for one in gone).items()))
        raise ReferenceGoneError(
            f"the log no longer holds {by_topic} that run {run_id} has trained, the first at {gone[0].topic}:"
            f"{gone[0].partition}:{gone[0].offset}: an archive of it would be no whole run",
            "The topics' retention was too short; nothing was written",
        )
