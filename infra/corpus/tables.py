"""Texts of Parquet files and of datasets that Hugging Face's `datasets` saved to disk (Arrow streams with state.json).

In: a file or folder. Out: Raw and Skip values. Read by pyarrow, a few rows at a time. Covered against untrusted files: declared
sizes and lengths are bounded before values are made (dictionaries are never spread out), every array is validated before it is
read, file names in state.json stay inside their folder, extension types are not loaded (pyarrow 14.0.1 and later run no pickled
ones).
Not covered: memory that a damaged page claims and then fills; the operating system's limit ends such a command. Called by
reading.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from infra.corpus.raw import LARGEST_TABLE_BYTES, LARGEST_TEXT_BYTES, Raw, Skip, decoded
from infra.corpus.reading import TITLE_COLUMNS, choose_column, missing

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
ROWS: Final = 256  # made at a time
LARGEST_GROUP_BYTES: Final = 2 * 2**30  # of a row group's wanted columns, as it declares them
LARGEST_HEADER: Final = 100 * 2**20
MOST_BATCH_BYTES: Final = 2 * 2**30
LARGEST_STATE_BYTES: Final = 1 << 20


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """state.json, as far as it is read."""

    files: list[_DataFile] = msgspec.field(name="_data_files")


class _Splits(msgspec.Struct):
    """dataset_dict.json."""

    splits: list[str]


def is_saved(folder: Path) -> bool:
    """Whether `datasets` saved a dataset, or a dict of them, there."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def read_saved(folder: Path, name: str, text_column: str) -> Iterator[Raw | Skip]:
    """Every row of every split."""
    if not (folder / "state.json").is_file():
        splits = _described(folder / "dataset_dict.json", _Splits, f"{name}/dataset_dict.json")
        if isinstance(splits, Skip):
            yield splits
            return
        for split in splits.splits:
            if not _inside(split) or not (folder / split / "state.json").is_file():
                yield Skip("damaged", f"{name}/dataset_dict.json", f"there is no split {split[:80]!r} beside it")
            else:
                yield from read_saved(folder / split, f"{name}/{split}", text_column)
        return
    state = _described(folder / "state.json", _State, f"{name}/state.json")
    if isinstance(state, Skip):
        yield state
        return
    for one in state.files:
        file = folder / one.filename
        if not _inside(one.filename) or file.is_symlink() or not file.is_file():
            yield Skip("damaged", f"{name}/state.json", f"there is no file {one.filename[:80]!r} beside it")
        elif file.stat().st_size > LARGEST_TABLE_BYTES:
            yield Skip("too large", f"{name}/{one.filename}")
        else:
            yield from _guarded(_read_stream(file, f"{name}/{one.filename}", text_column), f"{name}/{one.filename}")


def read_parquet(file: Path, name: str, text_column: str) -> Iterator[Raw | Skip]:
    """Every row."""
    yield from _guarded(_read_parquet(file, name, text_column), name)


def _inside(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\\" not in name and "\0" not in name


def _described(file: Path, kind: type[T], name: str) -> T | Skip:
    with file.open("rb") as source:
        data = source.read(LARGEST_STATE_BYTES + 1)
    if len(data) > LARGEST_STATE_BYTES:
        return Skip("too large", name)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as problem:
        return Skip("damaged", name, str(problem))


def _guarded(rows: Iterator[Raw | Skip], name: str) -> Iterator[Raw | Skip]:
    """The rows up to where the file breaks, and then that it does."""
    import pyarrow as pa

    try:
        yield from rows
    except (pa.ArrowException, OSError, MemoryError) as problem:
        yield Skip("damaged", name, " ".join(str(problem).split())[:200])


def _read_parquet(file: Path, name: str, text_column: str) -> Iterator[Raw | Skip]:
    import pyarrow.parquet as pq

    limits: dict[str, Any] = {"thrift_string_size_limit": LARGEST_HEADER, "thrift_container_size_limit": LARGEST_HEADER}
    with pq.ParquetFile(file, **limits) as head:
        names, held = head.schema_arrow.names, _text_columns(head.schema_arrow)
    column = choose_column(held, text_column)
    if not column:
        yield Skip("no text column", name, missing(names, text_column))
        return
    wanted = _wanted(column, held)
    with pq.ParquetFile(file, read_dictionary=wanted, **limits) as source:
        row = 0
        for group in range(source.num_row_groups):
            declared = source.metadata.row_group(group)
            chunks = [declared.column(index) for index in range(declared.num_columns)]
            size = sum(one.total_uncompressed_size for one in chunks if one.path_in_schema in wanted)
            if size > LARGEST_GROUP_BYTES or size < 0:
                yield Skip("too large", f"{name} row {row + 1}", f"a group of {size} bytes")
            else:
                for batch in source.iter_batches(ROWS, row_groups=[group], columns=wanted, use_threads=False):
                    yield from _read_batch(batch, wanted, name, row)
                    row += batch.num_rows
                continue
            row += declared.num_rows


def _read_stream(file: Path, name: str, text_column: str) -> Iterator[Raw | Skip]:
    import pyarrow as pa

    with pa.OSFile(str(file), "rb") as raw, pa.ipc.open_stream(raw) as source:
        held = _text_columns(source.schema)
        column = choose_column(held, text_column)
        if not column:
            yield Skip("no text column", name, missing(source.schema.names, text_column))
            return
        row = 0
        for batch in source:
            batch.validate()
            if batch.nbytes > MOST_BATCH_BYTES:
                yield Skip("too large", f"{name} row {row + 1}", f"a batch of {batch.nbytes} bytes")
            else:
                yield from _read_batch(batch, _wanted(column, held), name, row)
            row += batch.num_rows


def _text_columns(schema: pa.Schema) -> list[str]:
    import pyarrow.types as kinds

    def is_text(kind: pa.DataType) -> bool:
        inner = kind.value_type if kinds.is_dictionary(kind) else kind
        return bool(kinds.is_string(inner) or kinds.is_large_string(inner))

    names = [field.name for field in schema]
    return [field.name for field in schema if is_text(field.type) and names.count(field.name) == 1]


def _wanted(column: str, held: Sequence[str]) -> list[str]:
    """The document's column, then that of its title where there is one."""
    return [column, *[name for name in TITLE_COLUMNS if name in held and name != column][:1]]


def _read_batch(batch: pa.RecordBatch, wanted: Sequence[str], name: str, before: int) -> Iterator[Raw | Skip]:
    columns = [_values(batch.column(batch.schema.get_field_index(one))) for one in wanted]
    stem = Path(name).stem
    for number in range(batch.num_rows):
        place = f"{name} row {before + number + 1}"
        value, *titles = (next(column) for column in columns)
        if isinstance(value, int):
            text: str | Skip = Skip("too large", place, f"{value} bytes")
        else:
            text = decoded(value, place) if value is not None else Skip("no text", place)
        if isinstance(text, Skip):
            yield text
            continue
        title = titles[0].decode("utf-8", "replace") if titles and isinstance(titles[0], bytes) else ""
        yield Raw(place, title or f"{stem} {before + number + 1}", text)


def _values(column: pa.Array) -> Iterator[bytes | int | None]:
    """The bytes of each row, validated, a dictionary's values where they lie; of one that is too large, its size."""
    import pyarrow as pa

    column.validate()
    places = None
    if pa.types.is_dictionary(column.type):
        places, column = column.indices, column.dictionary
        places.validate(full=True)
    data = column.cast(pa.large_binary())
    data.validate(full=True)
    for number in range(len(data if places is None else places)):
        index = number if places is None else places[number].as_py()
        if index is not None and not 0 <= index < len(data):
            raise pa.ArrowInvalid(f"a dictionary of {len(data)} values has none at {index}")
        value = data[index] if index is not None else None
        buffer = value.as_buffer() if value is not None and value.is_valid else None
        yield None if buffer is None else buffer.size if buffer.size > LARGEST_TEXT_BYTES else buffer.to_pybytes()
