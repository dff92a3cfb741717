"""Pools: a folder of environments that somebody wrote, drawn as documents are, in place of a designer's work.

A NAME.py file is one environment, `solution` included; a NAME.md beside it holds its hint, and may begin with a line
`skill: NAME`. A .jsonl file holds an environment a line: `source`, and where known `id`, `hint`, `skill`; of a procedural pool
also `family` and `level`. Out: documents whose text is the source. Called by streams/design, the preflight and a run's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infra.corpus import SHARD, corpus_digest, load_corpus, require_tags, split_head
from schemas.design import Document
from schemas.errors import CorpusError
from schemas.settings import Recipe

SOURCE, HINT = ".py", ".md"
SUFFIXES = (SOURCE, HINT, SHARD)


class PoolLine(msgspec.Struct, frozen=True, kw_only=True):
    """One environment of a .jsonl file; fields that nobody knows are passed over."""

    source: str
    id: str = ""
    hint: str = ""
    skill: str = ""
    family: str = ""
    level: int = -1


def recipe_documents(recipe: Recipe, folder: Path) -> list[Document]:
    """What a run draws from, whole: its corpus, or its pool. Empty where it uses none. Raises CorpusError."""
    if recipe.is_pooled:
        pool = load_pool(folder)
        if recipe.pool == "procedural":
            _require_levels(pool, folder)
        return pool
    if not recipe.reads_corpus:
        return []
    documents = load_corpus(folder)
    require_tags(documents, recipe.corpus.tags, folder)
    return documents


def recipe_digest(recipe: Recipe, folder: Path) -> str:
    """SHA-256 over the same, in hexadecimal; empty where the run uses none. Raises CorpusError."""
    if recipe.is_pooled:
        return corpus_digest(folder, SUFFIXES)
    return corpus_digest(folder) if recipe.reads_corpus else ""


def load_pool(folder: Path) -> list[Document]:
    """All environments of a folder, in the order of their files' paths below it and of their lines.

    Raises CorpusError naming the file, and the line of a .jsonl file.
    """
    if not folder.is_dir():
        raise CorpusError(f"no pool folder at {folder}", "Name one with corpus.path: a folder of .py or .jsonl files")
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    names = {file.with_suffix("") for file in files if file.suffix == SOURCE}
    for file in files:
        if file.suffix == HINT and file.with_suffix("") not in names:
            raise CorpusError(f"{file} is the hint of no environment", f"Put {file.stem}.py beside it, or take it out")
    found = [one for file in files for one in _read(file, file.relative_to(folder).as_posix())]
    if not found:
        raise CorpusError(f"the pool folder {folder} holds no environment", "Put .py or .jsonl files there")
    ((twice, count),) = Counter(one.document_id for one in found).most_common(1)
    if count > 1:
        raise CorpusError(f"the pool folder {folder} holds {count} environments of the id {twice}", "Keep one of them")
    return found


def _require_levels(pool: list[Document], folder: Path) -> None:
    for one in pool:
        if not one.family or one.level < 0:
            raise CorpusError(
                f'pool = "procedural": environment {one.document_id} in {folder} names no family and level',
                "Write `family` and `level` (0 and up) in each line of its .jsonl files, as `spade pool make` does",
            )


def _read(file: Path, name: str) -> Iterator[Document]:
    if file.suffix == SHARD:
        yield from _read_lines(file, name)
    elif file.suffix == SOURCE and file.name != "__init__.py":
        hint = file.with_suffix(HINT)
        head, _, text = split_head(_text(hint)) if hint.is_file() else ({"skill": ""}, "", "")
        yield Document(document_id=name, title=file.stem, text=_text(file), skill=head["skill"], hint=text)


def _read_lines(file: Path, name: str) -> Iterator[Document]:
    decoder = msgspec.json.Decoder(PoolLine)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                found = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
                raise CorpusError(
                    f"{file} line {number} is no environment ({problem})", 'Write {"source": "..."} there'
                ) from problem
            given = found.id or f"{name}#{number}"
            yield Document(
                document_id=given,
                title=given,
                text=found.source,
                skill=found.skill,
                hint=found.hint,
                family=found.family,
                level=found.level,
            )


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file} is not UTF-8 text (byte {error.start})", "Save it as UTF-8 or take it out") from error
