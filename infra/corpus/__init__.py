"""Corpora: folders of text files and of shards that `spade corpus add` writes, and the digest that a run's first record carries.

A .md or .txt file is one document, UTF-8. It may begin with lines `skill: NAME` (the skill it fits; else it fits any) and `tag:
NAME` (math, science or code), then a line `# TITLE` (else the file's name is the title); the rest is the text. A .jsonl file is a
shard: an object a line, with `text`, and where known `id`, `title`, `skill`, `tag`. Called by streams/design and `spade corpus`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from schemas.design import Document
from schemas.errors import CorpusError
from schemas.settings import TAGS

CORPORA = Path(__file__).parent
TEXTS, SHARD = (".md", ".txt"), ".jsonl"
SUFFIXES = (*TEXTS, SHARD)
BLOCK_BYTES = 1 << 20


class ShardLine(msgspec.Struct, frozen=True, kw_only=True):
    """One document of a shard; fields that nobody knows are passed over."""

    text: str
    id: str = ""
    title: str = ""
    skill: str = ""
    tag: str = ""
    origin: str = ""  # where it came from, for people: FILE:LINE


def load_corpus(path: Path) -> list[Document]:
    """All documents of a folder, in the order of their files' paths below it and of their lines.

    Raises CorpusError naming the file, and the line of a shard.
    """
    documents = [document for file in _files(path) for document in _read(file, file.relative_to(path).as_posix())]
    if not documents:
        raise CorpusError(f"the corpus folder {path} holds no document", "Name a folder with text, or `spade corpus add` some")
    ((twice, count),) = Counter(document.document_id for document in documents).most_common(1)
    if count > 1:
        raise CorpusError(f"the corpus folder {path} holds {count} documents of the id {twice}", "Keep one of them")
    return documents


def require_tags(documents: Sequence[Document], tags: Sequence[str], path: Path) -> None:
    """Raises CorpusError where a tag that is to be drawn from has no document."""
    held = {str(tag): sum(document.tag == tag for document in documents) for tag in TAGS}
    for tag in tags:
        if not held[tag]:
            known = ", ".join(f"{name} {count}" for name, count in held.items())
            raise CorpusError(f"corpus.tags: no document in {path} is tagged {tag} (there are: {known})", "Leave the tag away")


def corpus_digest(path: Path, suffixes: Sequence[str] = SUFFIXES) -> str:
    """SHA-256 over names and bytes of the folder's documents, in hexadecimal. Raises CorpusError as `load_corpus` does."""
    digest = sha256()
    for file in _files(path, suffixes):
        digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as source:
            while block := source.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _files(path: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    if not path.is_dir():
        raise CorpusError(f"no corpus folder at {path}", f"Give a folder of {', '.join(suffixes)} files")
    files = sorted(file for file in path.rglob("*") if file.suffix in suffixes and file.is_file())
    if not files:
        raise CorpusError(f"the corpus folder {path} holds no document", f"Put {', '.join(suffixes)} files there")
    return files


def _read(file: Path, name: str) -> Iterator[Document]:
    if file.suffix == SHARD:
        yield from _read_shard(file, name)
    else:
        yield _read_document(file, name)


def _read_shard(file: Path, name: str) -> Iterator[Document]:
    decoder = msgspec.json.Decoder(ShardLine)
    with file.open("rb") as source:
        for number, line in enumerate(source, start=1):
            if not line.strip():
                continue
            try:
                found = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
                raise CorpusError(f"{file} line {number} is no document ({problem})", 'Write {"text": "..."} there') from problem
            text = found.text.strip()
            if not text:
                raise CorpusError(f"{file} line {number} holds no text", "Take the line out of the corpus")
            require_tag(found.tag, f"{file} line {number}")
            yield Document(
                document_id=found.id or f"{name}#{number}",
                title=found.title or f"{Path(name).stem} {number}",
                text=text,
                skill=found.skill,
                tag=found.tag,
            )


def _read_document(file: Path, document_id: str) -> Document:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file} is not UTF-8 text (byte {error.start})", "Save it as UTF-8 or take it out") from error
    if "\0" in text:
        raise CorpusError(f"{file} is not text: it holds a zero byte", "Take it out of the corpus")
    head, title, body = split_head(text)
    if not body:
        raise CorpusError(f"{file} holds no text below its heading", "Write the document, or take the file out of the corpus")
    require_tag(head["tag"], str(file))
    return Document(
        document_id=document_id, title=title or Path(document_id).stem, text=body, skill=head["skill"], tag=head["tag"]
    )


def split_head(text: str) -> tuple[dict[str, str], str, str]:
    """({skill, tag}, title, body) of a document's text; "" for what it does not say."""
    head = {"skill": "", "tag": ""}
    lines = text.strip().split("\n")
    while lines and (name := lines[0].partition(":")[0]) in head and ":" in lines[0] and not head[name]:
        head[name] = lines.pop(0).partition(":")[2].strip()
    title = lines.pop(0).removeprefix("# ").strip() if lines and lines[0].startswith("# ") else ""
    return head, title, "\n".join(lines).strip()


def require_tag(tag: str, place: str) -> None:
    """Raises CorpusError for a tag that there is not."""
    if tag and tag not in TAGS:
        raise CorpusError(f"{place}: there is no tag {tag!r}", f"Write one of {', '.join(TAGS)}, or none")
