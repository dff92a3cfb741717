"""The texts of files and folders, one after another, with what was passed over and why.

In: paths that a person named. Out: Raw and Skip values, in the order of the paths and, below a folder, of its files' names.
Covered against untrusted files: sizes are bounded before a file is read, lines and values before they are decoded; links are
not followed; nothing is unpickled or executed. Text and JSON lines are read here, tables by tables.py. Raises CorpusError for a
path that can't be read at all; anything inside is a Skip. Called by `spade corpus add`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from infra.corpus import split_head
from infra.corpus.raw import LARGEST_TABLE_BYTES, LARGEST_TEXT_BYTES, Raw, Reason, Skip, decoded
from schemas.errors import CorpusError

TEXTS: Final = (".txt", ".md", ".markdown")
LINES: Final = (".jsonl", ".ndjson")
PARQUET: Final = (".parquet",)
KINDS: Final = "text (.txt, .md), JSON lines (.jsonl), Parquet (.parquet), or a folder of a Hugging Face dataset"
# Names of columns that hold a document, the likeliest first, and those that hold its title.
TEXT_COLUMNS: Final = (
    *("text", "content", "document", "body", "passage", "article", "markdown", "page_content", "code", "question", "problem"),
    *("prompt", "abstract"),
)
TITLE_COLUMNS: Final = ("title", "name", "heading")
TOLD_COLUMNS: Final = (
    *TITLE_COLUMNS,
    "id",
    "skill",
    "tag",
    "source",
    "origin",
    "url",
    "lang",
    "language",
    "license",
)  # never the text
DATASET_MARKS: Final = ("dataset_dict.json", "state.json", "dataset_info.json", "dataset_infos.json")
MOST_FILES: Final = 100_000


def read_paths(paths: Sequence[Path], text_column: str = "") -> Iterator[Raw | Skip]:
    """Everything that the paths hold. `text_column`: the column of tables and JSON lines that is the document."""
    for path in paths:
        if path.is_symlink() or path.is_file():
            yield from _read_file(path.resolve(), path.name, text_column)
        elif path.is_dir():
            yield from _read_folder(path, text_column)
        else:
            raise CorpusError(f"there is no file or folder {path}", f"Name {KINDS}")


def _read_folder(folder: Path, text_column: str) -> Iterator[Raw | Skip]:
    from infra.corpus.tables import is_saved, read_saved

    if is_saved(folder):
        yield from read_saved(folder, folder.name, text_column)
        return
    files, saved = _walk(folder)
    for inner in saved:
        yield from read_saved(inner, f"{folder.name}/{inner.relative_to(folder).as_posix()}", text_column)
    dataset = any(file.suffix.lower() in PARQUET or file.name in DATASET_MARKS for file in files)
    for file in files:
        name = f"{folder.name}/{file.relative_to(folder).as_posix()}"
        if file.is_symlink():
            yield Skip("link", name)
        elif dataset and (file.name == "README.md" or file.name in DATASET_MARKS):
            yield Skip("dataset card", name)
        else:
            yield from _read_file(file, name, text_column)


def _walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folder's files, without hidden ones, and the saved datasets below it."""
    from infra.corpus.tables import is_saved

    files: list[Path] = []
    saved: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=_refuse):
        inside = sorted(one for one in folders if not one.startswith(".") and not (Path(root) / one).is_symlink())
        saved += [Path(root) / one for one in inside if is_saved(Path(root) / one)]
        folders[:] = [one for one in inside if not is_saved(Path(root) / one)]
        files += [Path(root) / name for name in names if not name.startswith(".")]
        if len(files) > MOST_FILES:
            raise CorpusError(f"the folder {folder} holds more than {MOST_FILES} files", "Name its parts one by one")
    return sorted(files), saved


def _refuse(problem: OSError) -> None:
    raise CorpusError(f"the folder {problem.filename} can't be read ({problem.strerror})", "Name one that you may read")


def _read_file(file: Path, name: str, text_column: str) -> Iterator[Raw | Skip]:
    suffix = file.suffix.lower()
    try:
        size = file.stat().st_size
        if not file.is_file() or suffix not in (*TEXTS, *LINES, *PARQUET):
            yield Skip("another kind of file", name, f"read are {KINDS}")
        elif size > (LARGEST_TEXT_BYTES if suffix in TEXTS else LARGEST_TABLE_BYTES):
            yield Skip("too large", name, f"{size} bytes")
        elif suffix in TEXTS:
            yield _read_text(file, name)
        elif suffix in LINES:
            yield from _read_lines(file, name, text_column)
        else:
            from infra.corpus.tables import read_parquet

            yield from read_parquet(file, name, text_column)
    except OSError as problem:
        yield Skip("damaged", name, problem.strerror or str(problem))


def _read_text(file: Path, name: str) -> Raw | Skip:
    text = decoded(file.read_bytes(), name)
    if isinstance(text, Skip):
        return text
    head, title, body = split_head(text)
    return Raw(name, title or file.stem, body, head["skill"], head["tag"]) if body else Skip("no text", name)


def _read_lines(file: Path, name: str, text_column: str) -> Iterator[Raw | Skip]:
    with file.open("rb") as source:
        number = 0
        while line := source.readline(LARGEST_TEXT_BYTES + 1):
            number += 1
            place = f"{name}:{number}"
            if len(line) > LARGEST_TEXT_BYTES:
                while line and not line.endswith(b"\n"):
                    line = source.readline(LARGEST_TEXT_BYTES)
                yield Skip("too large", place, f"a line of more than {LARGEST_TEXT_BYTES} bytes")
            elif line.strip():
                yield _read_line(line, place, file.stem, text_column)


def _read_line(line: bytes, place: str, stem: str, text_column: str) -> Raw | Skip:
    try:
        found = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except UnicodeDecodeError as problem:
        return Skip("encoding", place, str(problem))
    except (msgspec.MsgspecError, RecursionError) as problem:
        reason: Reason = "encoding" if "utf-8" in str(problem).lower() else "not JSON"
        return Skip(reason, place, str(problem))
    if not isinstance(found, dict):
        return Skip("no text column", place, f"{type(found).__name__}, not an object")
    held = [key for key, value in found.items() if isinstance(value, str)]
    column = choose_column(held, text_column)
    if not column:
        return Skip("no text column", place, missing(list(found), text_column))
    try:
        text = decoded(found[column].encode(), place)
    except UnicodeEncodeError:
        return Skip("encoding", place, "half of a surrogate pair")
    if isinstance(text, Skip):
        return text
    title = (
        next((found[key] for key in TITLE_COLUMNS if key in held and key != column), "") or f"{stem} {place.rpartition(':')[2]}"
    )
    return Raw(place, title, text, *(_word(found, key) for key in ("skill", "tag")))


def _word(found: dict[str, Any], key: str) -> str:
    value = found.get(key, "")
    return value if isinstance(value, str) and value.isprintable() else ""


def choose_column(held: Sequence[str], text_column: str) -> str:
    """Of the columns that hold text: the one that was asked for, the likeliest name, or the only one; "" where it is none."""
    if text_column:
        return text_column if text_column in held else ""
    others = [name for name in held if name not in TOLD_COLUMNS]
    return next((name for name in TEXT_COLUMNS if name in held), others[0] if len(others) == 1 else "")


def missing(columns: Sequence[str], text_column: str) -> str:
    """What is told where no column is the document."""
    known = ", ".join(columns[:12]) or "none"
    return (
        f"no column {text_column} with text (columns: {known})"
        if text_column
        else f"columns: {known}; name one with --text-column"
    )
