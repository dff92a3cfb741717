"""The shipped corpus, the held-out suite and the readers of both."""

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from infra.corpus import CORPORA, corpus_digest, load_corpus
from infra.dialects.nano import NanoDialect, keywords_of
from infra.dialects.words import FAMILY_OF_WORD, FAMILY_WORDS
from infra.suites import SUITES, evaluation_seed, load_suite
from infra.suites.canonical import digest
from schemas.errors import CorpusError, SettingsError
from schemas.settings import TAGS
from trainer.nano.census import openings, take_census
from trainer.nano.families import FAMILIES
from trainer.nano.family import write_source
from trainer.nano.newcomers import NEWCOMERS
from trainer.nano.suite import SUITES as NANO_SUITES
from trainer.nano.suite import write_suite
from trainer.nano.warmstart import draw_batches, plan_stages
from trainer.nano.writer import Writer, make_environment


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


@pytest.mark.parametrize("name", NANO_SUITES)
def test_a_shipped_suite_is_what_its_maker_writes(name: str, tmp_path: Path) -> None:
    write_suite(tmp_path / "made.jsonl", NANO_SUITES[name]())
    assert (tmp_path / "made.jsonl").read_bytes() == (SUITES / f"{name}.jsonl").read_bytes()


def test_sizes_of_their_own_suite_lie_beyond_all_that_the_warm_start_knew() -> None:
    items = load_suite("nano-sizes")
    assert {item.family for item in items} == set(FAMILIES)
    for item in items:
        assert item.size > FAMILIES[item.family].sizes[1]
        environment = make_environment(item.source)
        assert all(environment.reset(evaluation_seed(item.env_id, index))[0] for index in range(20))


def test_new_families_are_named_nowhere_and_their_own_solutions_win() -> None:
    assert {family.skill for family in NEWCOMERS} == {family.skill for family in FAMILIES.values()}
    assert not {family.name for family in NEWCOMERS} & {*FAMILIES, *FAMILY_OF_WORD}
    rng = Random(4)
    for family in NEWCOMERS:
        for size in range(family.sizes[0], family.sizes[1] + 1):
            environment = make_environment(write_source(family, rng, size))
            answers = []
            for seed in range(30):
                assert environment.reset(seed)[0]
                answers += environment.solution()
                assert environment.step(answers[-1])[1] == 1.0
            assert Counter(answers).most_common(1)[0][1] <= 18, f"{family.name} of size {size} has one answer"


def test_every_instance_of_the_reported_suites_shows_data_and_few_show_the_same() -> None:
    for name in NANO_SUITES:
        shown = [make_environment(item.source).reset(evaluation_seed(item.env_id, 0))[0] for item in load_suite(name)]
        found = [digest(one) for one in shown]
        assert "" not in found
        assert len(set(found)) > 0.85 * len(found)


def test_the_census_holds_what_the_warm_starts_plays_showed() -> None:
    model = Path(__file__).parents[2] / "trainer/nano/model"
    told: list[str] = []
    found = take_census(model, seed=3, minutes=0.05, tell=told.append)
    dialect = NanoDialect(model)
    plan = plan_stages(17)[0]
    shown = [
        one for batch in islice(draw_batches(Random(3), Writer(dialect), plan), plan.steps) for one in openings(dialect, batch)
    ]
    assert len(shown) > 20
    assert {digest(one) for one in shown} - {""} <= found
    assert found == take_census(model, seed=3, minutes=0.05)
    assert found != take_census(model, seed=4, minutes=0.05)


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
