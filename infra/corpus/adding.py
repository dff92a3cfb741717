"""From texts of any kind to documents of a corpus: cut, told apart, tagged, written as shards; and what was left out, counted.

In: what reading.py yields, a folder (new, or a corpus already: its documents count for duplicates). Out: shards `added-
NNNN.jsonl` there, all of them or none, and a Report. An id is the digest of a document's text, so that the same text has the
same id wherever it came from. Called by `spade corpus add`. Blocks while it reads; raises CorpusError, DiskFullError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infra.corpus import SHARD, SUFFIXES, ShardLine, load_corpus
from infra.corpus.cutting import cut_text
from infra.corpus.duplicates import Seen
from infra.corpus.raw import Raw, Reason, Skip
from infra.corpus.tagging import tag_of
from schemas.errors import CorpusError, DiskFullError
from schemas.settings import TAGS

SHARD_BYTES = 32 * 2**20
SAID_EVERY = 5000  # texts
ID_DIGITS = 16
LONGEST_TITLE = 200  # characters
_SUFFIX = ".part"


@dataclass(frozen=True)
class Cut:
    """How documents are made. Words are counted between white space."""

    most_words: int = 800
    least_words: int = 20
    most_documents: int = 100_000  # of the whole corpus
    tag: str = ""  # "": by the text
    skill: str = ""


@dataclass
class Report:
    """What came of it."""

    added: int = 0
    words: int = 0
    texts: int = 0  # read, whatever came of them
    before: int = 0  # documents that the folder held
    by_tag: Counter[str] = field(default_factory=Counter)  # "" for untagged
    skipped: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, str] = field(default_factory=dict)  # the first of each reason: where, and what was wrong
    files: list[str] = field(default_factory=list)

    def skip(self, skip: Skip) -> None:
        """Counts one."""
        self.skipped[skip.reason] += 1
        self.examples.setdefault(skip.reason, f"{skip.origin}: {skip.detail}" if skip.detail else skip.origin)


def add_documents(texts: Iterable[Raw | Skip], target: Path, cut: Cut, say: Callable[[str], None] = lambda line: None) -> Report:
    """Adds what is new to the folder. Raises CorpusError, also where another command adds to it at the time."""
    try:
        with _alone(target):
            return _add(texts, target, cut, say)
    except OSError as problem:
        kind = DiskFullError if problem.errno == errno.ENOSPC else CorpusError
        raise kind(f"the corpus folder {target} can't be written ({problem.strerror})", "Name another with --to") from problem


def _add(texts: Iterable[Raw | Skip], target: Path, cut: Cut, say: Callable[[str], None]) -> Report:
    report, seen, writer = Report(), Seen(), _Shards(target)
    if any(file.suffix in SUFFIXES for file in target.rglob("*")):
        held = load_corpus(target)
        for document in held:
            seen.add(document.text)
        report.before = len(held)
    try:
        for line in _documents(texts, seen, cut, report, say):
            writer.write(line)
        report.files = writer.finish()
    finally:
        writer.drop()
    return report


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """The folder, which is made where it lacks, for this process only: shards are numbered by those that are there. One that was
    made and stays empty goes again."""
    made = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorpusError(f"another command adds to the corpus folder {target}", "Wait for its end") from None
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                target.rmdir()
        os.close(descriptor)


def _documents(
    texts: Iterable[Raw | Skip], seen: Seen, cut: Cut, report: Report, say: Callable[[str], None]
) -> Iterator[ShardLine]:
    for one in texts:
        report.texts += 1
        if report.texts % SAID_EVERY == 0:
            say(f"{report.texts} texts read, {report.added} documents so far ...")
        if isinstance(one, Skip):
            report.skip(one)
            continue
        pieces = cut_text(one.text, cut.most_words)
        for number, piece in enumerate(pieces, start=1):
            count = len(piece.split())
            origin = one.origin if len(pieces) == 1 else f"{one.origin} part {number}"
            why = _refused(piece, count, seen, cut, report)
            if why:
                report.skip(Skip(why, origin, f"{count} words" if why == "too short" else ""))
                continue
            tag = cut.tag or (one.tag if one.tag in TAGS else tag_of(piece) or "")
            report.added += 1
            report.words += count
            report.by_tag[tag] += 1
            title = " ".join(one.title.split())[:LONGEST_TITLE]
            yield ShardLine(
                text=piece,
                id=hashlib.sha256(piece.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGITS],
                title=title if len(pieces) == 1 else f"{title} ({number})",
                skill=cut.skill or one.skill,
                tag=tag,
                origin=origin,
            )


def _refused(piece: str, words: int, seen: Seen, cut: Cut, report: Report) -> Reason | None:
    if words < cut.least_words:
        return "too short"
    if report.before + report.added >= cut.most_documents:
        return "beyond the limit"
    found = seen.add(piece)
    return None if found == "new" else "duplicate" if found == "equal" else "near duplicate"


class _Shards:
    """Files that get their names when all of them are written."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._parts: list[Path] = []
        self._room = 0

    def write(self, line: ShardLine) -> None:
        """Appends one document."""
        data = msgspec.json.encode(line) + b"\n"
        if not self._parts or self._room < len(data):
            self._target.mkdir(parents=True, exist_ok=True)
            self._parts.append(self._target / f"{self._name(len(self._parts))}{_SUFFIX}")
            self._parts[-1].write_bytes(b"")
            self._room = SHARD_BYTES
        with self._parts[-1].open("ab") as sink:
            sink.write(data)
        self._room -= len(data)

    def finish(self) -> list[str]:
        """Gives every file its name; the names."""
        named = [part.with_name(part.name.removesuffix(_SUFFIX)) for part in self._parts]
        for part, final in zip(self._parts, named, strict=True):
            part.replace(final)
        self._parts = []
        return [file.name for file in named]

    def drop(self) -> None:
        """Removes what was not finished."""
        for part in self._parts:
            part.unlink(missing_ok=True)

    def _name(self, count: int) -> str:
        taken = [int(file.stem.rpartition("-")[2]) for file in self._target.glob(f"added-[0-9][0-9][0-9][0-9]{SHARD}")]
        return f"added-{max(taken, default=0) + 1 + count:04d}{SHARD}"
