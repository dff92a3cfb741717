"""The shipped corpus, the held-out suite and the readers of both."""

from collections import Counter
from pathlib import Path

import pytest

from infra.corpus import CORPORA, corpus_digest, load_corpus
from infra.dialects.nano import keywords_of
from infra.dialects.words import FAMILY_OF_WORD, FAMILY_WORDS
from infra.suites import SUITES, evaluation_seed, load_suite
from schemas.errors import CorpusError, SettingsError
from schemas.settings import TAGS
from trainer.nano.families import FAMILIES
from trainer.nano.suite import write_suite
from trainer.nano.writer import make_environment


def test_each_shipped_document_points_to_one_family_of_its_skill() -> None:
    documents = load_corpus(CORPORA / "nano")
    assert len(documents) >= 60
    pointed = set()
    for document in documents:
        families = [FAMILY_OF_WORD[word] for word in keywords_of(f"{document.title} {document.text}")]
        family = max(set(families), key=families.count)
        assert families.count(family) * 2 > len(families), document.document_id
        assert FAMILIES[family].skill == document.skill
        assert 40 <= len(document.text.split()) <= 90
        pointed.add(family)
    assert pointed == set(FAMILIES)
    assert Counter(document.tag for document in documents).keys() == set(TAGS)


def test_each_word_belongs_to_one_family() -> None:
    assert len(FAMILY_OF_WORD) == sum(len(words) for words in FAMILY_WORDS.values())
    assert set(FAMILY_WORDS) == set(FAMILIES)


def test_the_corpus_digest_changes_with_a_document(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("skill: Optimization\n# Title\n\nText of it.\n")
    before = corpus_digest(tmp_path)
    (document,) = load_corpus(tmp_path)
    assert (document.title, document.text, document.skill) == ("Title", "Text of it.", "Optimization")
    (tmp_path / "one.md").write_text("Text of it!")
    assert corpus_digest(tmp_path) != before
    assert load_corpus(tmp_path)[0].title == "one"


def test_a_corpus_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no corpus folder"):
        load_corpus(tmp_path / "missing")
    with pytest.raises(CorpusError, match="holds no document"):
        load_corpus(tmp_path)
    (tmp_path / "picture.md").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(CorpusError, match=r"picture\.md is not UTF-8"):
        load_corpus(tmp_path)
    (tmp_path / "picture.md").write_text("# only a heading\n")
    with pytest.raises(CorpusError, match=r"picture\.md holds no text"):
        load_corpus(tmp_path)


def test_the_shipped_suite_is_what_its_maker_writes(tmp_path: Path) -> None:
    write_suite(tmp_path / "nano.jsonl")
    assert (tmp_path / "nano.jsonl").read_bytes() == (SUITES / "nano.jsonl").read_bytes()


def test_the_suite_covers_every_family_at_several_sizes_and_holds_no_solution() -> None:
    items = load_suite("nano")
    assert len(items) >= 200
    assert len({item.env_id for item in items}) == len(items)
    for name in FAMILIES:
        assert len({item.size for item in items if item.family == name}) >= 5
    for item in items:
        assert "solution" not in item.source
        environment = make_environment(item.source)
        assert environment.reset(evaluation_seed(item.env_id, 0))[0]
        assert environment.size == item.size


def test_a_suite_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nano"):
        load_suite("unheard-of")
    (tmp_path / "bad.jsonl").write_text('{"env_id": 3}\n')
    with pytest.raises(SettingsError, match="line 1"):
        load_suite(str(tmp_path / "bad.jsonl"))


def test_evaluation_seeds_differ_by_environment_index_and_salt() -> None:
    seeds = {evaluation_seed(env, index, salt) for env in ("a", "b") for index in range(50) for salt in ("", "after")}
    assert len(seeds) == 200
