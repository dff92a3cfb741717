"""Corpora: folders of short text files, one document a file, and the digest that a run's first record carries.

A file is UTF-8 text, .md or .txt. It may begin with a line `skill: NAME` (the skill it fits; else it fits any), then a line `#
TITLE` (else the file's name is the title); the rest is the text. Called by streams/design and `spade corpus`.
"""

from hashlib import sha256
from pathlib import Path

from schemas.design import Document
from schemas.errors import CorpusError

CORPORA = Path(__file__).parent
SUFFIXES = (".md", ".txt")


def load_corpus(path: Path) -> list[Document]:
    """All documents of a folder in the order of their ids, which are paths below it. Raises CorpusError naming the file."""
    return [_read_document(file, file.relative_to(path).as_posix()) for file in _files(path)]


def corpus_digest(path: Path) -> str:
    """SHA-256 over names and bytes of the folder's documents, in hexadecimal. Raises CorpusError as `load_corpus` does."""
    digest = sha256()
    for file in _files(path):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(path).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise CorpusError(f"no corpus folder at {path}", f"Give a folder of {' or '.join(SUFFIXES)} files")
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files:
        raise CorpusError(f"the corpus folder {path} holds no document", f"Put {' or '.join(SUFFIXES)} files there")
    return files


def _read_document(file: Path, document_id: str) -> Document:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file} is not UTF-8 text (byte {error.start})", "Save it as UTF-8 or take it out") from error
    if "\0" in text:
        raise CorpusError(f"{file} is not text: it holds a zero byte", "Take it out of the corpus")
    skill, title = "", Path(document_id).stem
    lines = text.strip().split("\n")
    if lines[0].startswith("skill:"):
        skill = lines.pop(0).removeprefix("skill:").strip()
    if lines and lines[0].startswith("# "):
        title = lines.pop(0).removeprefix("# ").strip()
    body = "\n".join(lines).strip()
    if not body:
        raise CorpusError(f"{file} holds no text below its heading", "Write the document, or take the file out of the corpus")
    return Document(document_id=document_id, title=title, text=body, skill=skill)
