"""`spade corpus add` on real files of every kind, whole and broken: what becomes a document, and what is counted as skipped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cli.app import run_app
from infra.cli.preflight import check_corpus
from infra.corpus import corpus_digest, load_corpus
from infra.corpus.adding import Cut, Report, add_documents
from infra.corpus.cutting import cut_text
from infra.corpus.raw import LARGEST_TEXT_BYTES
from infra.corpus.reading import read_paths
from infra.runs import Run
from schemas.design import DesignRequested, Document
from schemas.errors import CorpusError
from schemas.run import RunStarted
from schemas.topics import Topic
from streams.design import DesignJoin
from streams.slots import count_blocks
from streams.stage import Positioned, Stage
from streams.stages import SPECS
from tests.streamworld import policy, small_recipe

WORDS = Cut(least_words=3)
MATH = "The sum of two prime numbers is even unless one of them is two. Proof: 3 + 5 = 8."
SCIENCE = "A cell takes in oxygen, and the temperature of the ocean changes how fast a species of bacteria grows."
CODE = "def total(values):\n    return sum(values)\n\nThe function returns a string where the array is empty."
PLAIN = "It was late, and nobody in the house had yet thought of dinner or of the long way home."


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file below `in`; the file."""

    def write(name: str, content: str | bytes) -> Path:
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write


def added(tmp_path: Path, *paths: Path, cut: Cut = WORDS, column: str = "") -> tuple[Report, list[Document]]:
    target = tmp_path / "corpus"
    report = add_documents(read_paths(paths, column), target, cut)
    return report, load_corpus(target) if target.exists() else []


def table(*texts: Any, **columns: list[Any]) -> pa.Table:
    return pa.table({"text": list(texts), **columns})


def test_text_and_markdown_become_documents_with_title_skill_and_tag(tmp_path: Path, put: Callable[..., Path]) -> None:
    put("a.txt", MATH)
    put("b.md", f"# On cells\n\n{SCIENCE}\n")
    put("sub/c.md", f"skill: Optimization\ntag: code\n# Told\n\n{PLAIN}\n")
    put("sub/d.txt", f"\ufeff{CODE}\r\nMore of it here.".encode())
    report, documents = added(tmp_path, tmp_path / "in")
    assert (report.added, report.skipped) == (4, Counter())
    assert [(one.title, one.skill, one.tag) for one in documents] == [
        ("a", "", "math"),
        ("On cells", "", "science"),
        ("Told", "Optimization", "code"),
        ("d", "", "code"),
    ]
    assert documents[1].text == SCIENCE
    assert "\r" not in documents[3].text
    assert len({one.document_id for one in documents}) == 4


def test_long_texts_are_cut_at_paragraphs_and_short_ones_counted(tmp_path: Path, put: Callable[..., Path]) -> None:
    paragraphs = [" ".join(f"word{n}x{place}" for place in range(30)) + "." for n in range(5)]
    put("long.txt", "\n\n".join([*paragraphs, "Too short."]))
    report, documents = added(tmp_path, tmp_path / "in", cut=Cut(most_words=60, least_words=5))
    assert [one.text for one in documents] == [
        "\n\n".join(paragraphs[:2]),
        "\n\n".join(paragraphs[2:4]),
        f"{paragraphs[4]}\n\nToo short.",
    ]
    assert [one.title for one in documents] == ["long (1)", "long (2)", "long (3)"]
    assert report.words == 152
    put("short.txt", "One two.")
    again, _ = added(tmp_path, tmp_path / "in", cut=Cut(most_words=60, least_words=5))
    assert again.skipped == {"duplicate": 3, "too short": 1}
    assert "short.txt" in again.examples["too short"]


def test_two_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("some words that are one document for whoever comes first")

    def while_another_adds(line: str) -> Iterator[str]:
        with pytest.raises(CorpusError, match="another command adds to the corpus folder"):
            added(tmp_path, tmp_path / "in", cut=Cut(least_words=1))
        yield line

    first = add_documents(
        (one for line in while_another_adds("") for one in read_paths([tmp_path / "in"])), tmp_path / "corpus", Cut(least_words=1)
    )
    assert first.added == 1
    again, _ = added(tmp_path, tmp_path / "in", cut=Cut(least_words=1))
    assert again.skipped == {"duplicate": 1}
    assert len(load_corpus(tmp_path / "corpus")) == 1


def test_a_folder_of_blank_files_holds_no_document_and_nothing_added_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "blank.jsonl").write_text(" \n\n")
    with pytest.raises(CorpusError, match="holds no document"):
        load_corpus(tmp_path / "in")
    report, _ = added(tmp_path, tmp_path / "in", cut=Cut(least_words=1))
    assert report.added == 0
    assert not (tmp_path / "corpus").exists()


@given(st.text(alphabet="ab .!?\n`", max_size=400), st.integers(1, 12))
def test_cutting_loses_no_word_and_keeps_to_the_length(text: str, most: int) -> None:
    pieces = cut_text(text, most)
    assert " ".join(pieces).split() == text.split()
    assert all(0 < len(piece.split()) <= most for piece in pieces)


def test_a_block_of_code_is_not_cut_at_its_blank_lines() -> None:
    block = "```python\na = 1\n\nb = 2\n```"
    assert cut_text(f"one two\n\n{block}\n\nthree four", 9) == ["one two", block, "three four"]


def test_copies_are_told_to_the_letter_and_nearly_also_from_what_was_there(tmp_path: Path, put: Callable[..., Path]) -> None:
    base = " ".join(f"token{n}" for n in range(200))
    put("a.txt", base)
    put("b.txt", f"  {base.upper()}\n")
    put("c.txt", base.replace("token7 ", "other "))
    put("d.txt", " ".join(f"token{n}" for n in range(150, 350)))
    report, _ = added(tmp_path, tmp_path / "in")
    assert (report.added, report.skipped) == (2, {"duplicate": 1, "near duplicate": 1})
    before = corpus_digest(tmp_path / "corpus")
    again, documents = added(tmp_path, tmp_path / "in")
    assert (again.added, again.before, again.files, len(documents)) == (0, 2, [], 2)
    assert corpus_digest(tmp_path / "corpus") == before
    put("e.txt", MATH)
    third, documents = added(tmp_path, tmp_path / "in" / "e.txt")
    assert (third.files, len(documents)) == (["added-0002.jsonl"], 3)


def test_json_lines_name_file_and_line_of_what_is_wrong(tmp_path: Path, put: Callable[..., Path]) -> None:
    lines = [
        json.dumps({"content": MATH, "title": "Primes"}),
        "{broken",
        json.dumps([1, 2]),
        json.dumps({"content": 3, "n": 4}),
        '{"content": "\\ud800 half of a pair, and some words"}',
        '{"content": "a zero \\u0000 byte"}',
        "",
        json.dumps({"content": "  "}),
        "[" * 100_000,
        json.dumps({"only": SCIENCE, "tag": "nonsense"}),
    ]
    file = put("many.jsonl", "\n".join(lines).encode() + b'\n{"content": "\xff\xfe latin"}\n')
    report, documents = added(tmp_path, file)
    assert [one.title for one in documents] == ["Primes", "many 10"]
    assert [one.tag for one in documents] == ["math", "science"]
    assert report.skipped.total() == 8
    assert report.skipped["not JSON"] >= 2
    assert report.skipped["encoding"] >= 2
    assert report.skipped["no text column"] == 2
    assert report.skipped["no text"] == 1
    assert report.examples["not JSON"].startswith("many.jsonl:2: ")
    assert report.examples["no text column"].startswith("many.jsonl:3: ")


def test_a_line_or_a_file_that_is_too_large_is_passed_over_unread(tmp_path: Path, put: Callable[..., Path]) -> None:
    file = put("big.jsonl", b'{"text": "' + b"x" * (LARGEST_TEXT_BYTES + 10) + b'"}\n' + json.dumps({"text": MATH}).encode())
    large = put("large.txt", b"")
    with large.open("r+b") as sink:
        sink.truncate(LARGEST_TEXT_BYTES + 1)  # sparse
    report, documents = added(tmp_path, file, large)
    assert report.skipped == {"too large": 2}
    assert "big.jsonl:1" in report.examples["too large"]
    assert len(documents) == 1


@pytest.mark.parametrize("dictionary", [False, True])
def test_parquet_is_read_with_its_nulls_titles_and_bytes_that_are_no_text(tmp_path: Path, dictionary: bool) -> None:
    data = [MATH.encode(), None, b"not \xff utf-8 text here", SCIENCE.encode(), b"  "]
    texts: pa.Array = pa.array(data, pa.binary()).view(pa.string())
    rows = pa.table({"title": ["One", "Two", "Three", None, "Five"], "text": texts, "n": list(range(5))})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=2, use_dictionary=dictionary)
    report, documents = added(tmp_path, tmp_path / "rows.parquet")
    assert [(one.title, one.text) for one in documents] == [("One", MATH), ("rows 4", SCIENCE)]
    assert report.skipped == {"no text": 2, "encoding": 1}
    assert report.examples["encoding"].startswith("rows.parquet row 3: ")


def test_a_table_without_a_plain_text_column_says_which_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"left": [MATH], "right": [CODE], "n": [1]}), tmp_path / "two.parquet")
    report, documents = added(tmp_path, tmp_path / "two.parquet")
    assert (report.skipped, documents) == ({"no text column": 1}, [])
    assert "columns: left, right, n; name one with --text-column" in report.examples["no text column"]
    _, documents = added(tmp_path, tmp_path / "two.parquet", column="right")
    assert [one.text for one in documents] == [CODE]
    report, _ = added(tmp_path, tmp_path / "two.parquet", column="n")
    assert "no column n with text" in report.examples["no text column"]


def save(folder: Path, rows: pa.Table, **state: Any) -> Path:
    """As `datasets.Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    features = {field.name: {"dtype": str(field.type), "_type": "Value"} for field in rows.schema}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features, "citation": "", "description": ""}))
    files = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps({**files, "_fingerprint": "0", "_split": "train", **state}))
    return folder


def test_a_saved_dataset_and_its_splits_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save(folder / "train", table(MATH, SCIENCE, None, label=[1, 2, 3]))
    save(folder / "test", table(CODE, label=[4]))
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    report, documents = added(tmp_path, folder)
    assert [one.text for one in documents] == [MATH, SCIENCE, CODE]
    assert report.skipped == {"no text": 1}
    assert report.examples["no text"] == "saved/train/data-00000-of-00001.arrow row 3"
    outer, _ = added(tmp_path, tmp_path / "saved" / "..")  # found below another folder, too
    assert outer.skipped["duplicate"] >= 3


def test_a_datasets_folder_of_parquet_files_has_a_card_that_is_no_document(tmp_path: Path, put: Callable[..., Path]) -> None:
    card = put("README.md", "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n---\n# A card\n\n" + PLAIN)
    put("data/notes.csv", "a,b\n1,2\n")
    pq.write_table(table(MATH), card.parent / "data" / "train-00000-of-00001.parquet")
    (card.parent / ".hidden.txt").write_text(PLAIN)
    (card.parent / "link.txt").symlink_to("/etc/hostname")
    report, documents = added(tmp_path, card.parent)
    assert [one.text for one in documents] == [MATH]
    assert report.skipped == {"dataset card": 1, "another kind of file": 1, "link": 1}


def broken_tables(folder: Path) -> Iterator[tuple[str, Path]]:
    whole = folder / "whole.parquet"
    pq.write_table(table(*(f"{MATH} {n} {'x' * n}" for n in range(500))), whole, compression="none", use_dictionary=False)
    data = whole.read_bytes()
    (folder / "cut.parquet").write_bytes(data[: len(data) // 2])
    (folder / "text.parquet").write_bytes(b"PAR1 not at all")
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "bent.parquet").write_bytes(data[:2000] + b"\xff" * 3000 + data[5000:])
    for name in ("cut", "text", "empty", "bent"):
        yield name, folder / f"{name}.parquet"
    saved = save(folder / "cut-arrow", table(MATH, SCIENCE))
    stream = saved / "data-00000-of-00001.arrow"
    stream.write_bytes(stream.read_bytes()[:-200])
    yield "cut arrow", saved
    lost = save(folder / "lost-file", table(MATH))
    (lost / "data-00000-of-00001.arrow").unlink()
    yield "lost file", lost
    out = save(folder / "out", table(MATH), _data_files=[{"filename": "../whole.parquet"}, {"filename": "/etc/passwd"}])
    yield "out of its folder", out
    bad = save(folder / "bad-state", table(MATH))
    (bad / "state.json").write_text("{")
    yield "bad state", bad
    split = folder / "no-split"
    split.mkdir()
    (split / "dataset_dict.json").write_text('{"splits": ["../whole", "gone"]}')
    yield "no split", split


def test_damaged_tables_are_counted_with_their_names_and_never_crash(tmp_path: Path) -> None:
    for name, path in broken_tables(tmp_path):
        report = add_documents(read_paths([path]), tmp_path / "corpus" / name, WORDS)
        assert report.skipped["damaged"] >= 1, name
        assert path.name in report.examples["damaged"], name


def test_offsets_that_point_beyond_the_values_are_damage_and_not_a_crash(tmp_path: Path) -> None:
    offsets = pa.array([0, 4_000_000, 5], pa.int32()).buffers()[1]
    wild = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"hello"))
    save(tmp_path / "wild", pa.table({"text": wild}))
    report, documents = added(tmp_path, tmp_path / "wild")
    assert (report.skipped, documents) == ({"damaged": 1}, [])


def test_a_dictionary_whose_value_is_large_and_repeated_is_not_spread_out(tmp_path: Path) -> None:
    large = "y" * (LARGEST_TEXT_BYTES + 1)
    rows = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 50 + [1]), [large, MATH])})
    pq.write_table(rows, tmp_path / "bomb.parquet")
    report, documents = added(tmp_path, tmp_path / "bomb.parquet")
    assert report.skipped == {"too large": 50}
    assert [one.text for one in documents] == [MATH]


def test_the_limit_of_documents_holds_for_the_whole_corpus(tmp_path: Path, put: Callable[..., Path]) -> None:
    texts = [" ".join(f"{place}of{n}" for place in range(20)) for n in range(6)]
    put("many.jsonl", "\n".join(json.dumps({"text": one}) for one in texts))
    report, _ = added(tmp_path, tmp_path / "in", cut=Cut(least_words=3, most_documents=4))
    assert (report.added, report.skipped) == (4, {"beyond the limit": 2})
    again, documents = added(tmp_path, tmp_path / "in", cut=Cut(least_words=3, most_documents=5))
    assert (again.added, len(documents)) == (0, 4) or (again.added, len(documents)) == (1, 5)


def test_nothing_is_left_where_reading_ends_in_an_error(tmp_path: Path, put: Callable[..., Path]) -> None:
    file = put("a.txt", MATH)
    with pytest.raises(CorpusError, match="there is no file or folder"):
        added(tmp_path, file, tmp_path / "missing")
    assert not (tmp_path / "corpus").exists()


def test_the_command_tells_counts_and_reasons(
    tmp_path: Path, put: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    put("a.txt", f"{MATH} {MATH.replace('two', 'three')} and so on it goes")
    put("b.docx", b"PK\x03\x04")
    put("c.txt", b"\xff\xfe\x00")
    arguments = ["corpus", "add", str(tmp_path / "in"), "--to", str(tmp_path / "corpus"), "--skill", "Optimization"]
    assert run_app(arguments) == 0
    shown = capsys.readouterr().out
    assert "1 documents added" in shown
    assert "math 1" in shown
    assert "another kind of file" in shown
    assert "not UTF-8 at byte 0" in shown
    assert load_corpus(tmp_path / "corpus")[0].skill == "Optimization"
    assert run_app([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["added"], told["before"], told["skipped"]["duplicate"]) == (0, 1, 1)
    assert run_app(["corpus", "add", str(tmp_path / "in" / "c.txt"), "--to", str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "nothing of it can be used: encoding 1 (c.txt: not UTF-8 at byte 0)" in error
    assert run_app(["corpus", "add", str(tmp_path / "in"), "--to", str(tmp_path / "other"), "--tag", "poetry"]) == 2
    assert "there is no tag 'poetry'" in capsys.readouterr().err


def test_a_runs_design_stage_draws_from_the_added_corpus_by_its_tags(tmp_path: Path, put: Callable[..., Path]) -> None:
    for tag, words in (("math", MATH), ("code", CODE), ("science", SCIENCE)):
        lines = [json.dumps({"text": f"{words} {' '.join(f'{tag}{n}x{place}' for place in range(12))}"}) for n in range(6)]
        put(f"{tag}.jsonl", "\n".join(lines))
    report, documents = added(tmp_path, tmp_path / "in")
    assert report.by_tag == {"math": 6, "code": 6, "science": 6}
    recipe = small_recipe(corpus__path=str(tmp_path / "corpus"), corpus__tags=["math", "code"])
    assert check_corpus(recipe) == 18
    started = RunStarted(
        run_id="run", event_id="e", recipe_json=recipe.model_dump_json(), recipe_name="added", seed=recipe.seed, steps=8,
        policy_place="", code_digest="", corpus_digest=corpus_digest(tmp_path / "corpus"), tokenizer_digest="", dialect="nano",
    )  # fmt: skip
    join = SPECS[Stage.DESIGN].make_join(Run(started=started, recipe=recipe))
    assert isinstance(join, DesignJoin)
    join.recover([Positioned(Topic.POLICY_PUBLISHED, 0, 0, policy("run", 0))])
    opened = join.open(0, [[] for _ in range(count_blocks(recipe))], time_is_up=False)
    slots = [slot for emit in opened.records if isinstance(emit.record, DesignRequested) for slot in emit.record.slots]
    assert [slot.document.tag for slot in slots] == ["math", "math", "code", "code", "math", "math"]  # two skills by turns
    assert {slot.document.document_id for slot in slots} <= {one.document_id for one in documents}
    alone = put("alone.txt", f"{MATH} One more of them, and that is all.")
    add_documents(read_paths([alone]), tmp_path / "small", WORDS)
    with pytest.raises(CorpusError, match=r"corpus\.tags: no document in .* is tagged science \(there are: math 1, science 0"):
        check_corpus(small_recipe(corpus__path=str(tmp_path / "small"), corpus__tags=["science"]))


def test_a_shard_that_is_damaged_later_names_its_line(tmp_path: Path, put: Callable[..., Path]) -> None:
    put("a.jsonl", "\n".join(json.dumps({"text": one}) for one in (MATH, SCIENCE)))
    added(tmp_path, tmp_path / "in")
    shard = tmp_path / "corpus" / "added-0001.jsonl"
    lines = shard.read_text().splitlines()
    for broken, message in (
        ("{", "is no document"),
        ('{"text": " "}', "holds no text"),
        ('{"text": "a", "tag": "x"}', "no tag 'x'"),
    ):
        shard.write_text(f"{lines[0]}\n{broken}\n")
        with pytest.raises(CorpusError, match=f"line 2.*{message}"):
            load_corpus(tmp_path / "corpus")
    shard.write_text(f"{lines[0]}\n{lines[0]}\n")
    with pytest.raises(CorpusError, match="2 documents of the id"):
        load_corpus(tmp_path / "corpus")
