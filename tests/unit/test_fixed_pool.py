"""A fixed pool: environments from a folder, drawn whole and in turn, proposed without tokens, trained for the player alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.cli.preflight import check_corpus
from infra.corpus.pool import load_pool, recipe_digest, recipe_documents
from infra.runs import find_folder
from schemas.common import Reference, SamplingSettings
from schemas.design import DesignRequested, Document, EnvProposed
from schemas.errors import CorpusError, SettingsError
from schemas.recipes import build_recipe
from schemas.settings import GAMES_SKILLS, Recipe
from streams.slots import fill_slots
from workers.design import PooledDesigns

ANSWERS = find_folder("infra/pools/answers")


def fixed(folder: Path = ANSWERS, environments: int = 6, **values: Any) -> Recipe:
    given = {"pool": "fixed", "corpus": {"path": str(folder), "max_words": 10}, "design": {"environments": environments}}
    return build_recipe({**given, **values})


def test_a_pool_of_files_is_read_with_hints_and_skills() -> None:
    found = {one.document_id: one for one in load_pool(ANSWERS)}
    assert len(found) == 6
    assert {one.skill for one in found.values()} == set(GAMES_SKILLS)
    one = found["sum_of_two.py"]
    assert one.text == (ANSWERS / "sum_of_two.py").read_text()
    assert one.hint == "Count up from the larger number."
    assert check_corpus(fixed()) == 6


def test_a_pool_of_lines_is_read_in_their_order(tmp_path: Path) -> None:
    first = {"source": "class AEnv: ...", "hint": "look", "skill": "Optimization", "win_rate": 0.5}
    lines = [first, {"source": "class BEnv: ...", "id": "b"}]
    (tmp_path / "made.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "hand.py").write_text("class CEnv: ...\n")
    found = load_pool(tmp_path)
    assert [(one.document_id, one.text, one.hint, one.skill) for one in found] == [
        ("hand.py", "class CEnv: ...\n", "", ""),
        ("made.jsonl#1", "class AEnv: ...", "look", "Optimization"),
        ("b", "class BEnv: ...", "", ""),
    ]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"hint": "x"}', r"a\.jsonl line 1 is no environment"),
        ("a.jsonl", b"\xff", r"a\.jsonl line 1 is no environment"),
        ("a.py", b"\xff\xfe", r"a\.py is not UTF-8 text"),
        ("lonely.md", b"a hint", r"lonely\.md is the hint of no environment.*lonely\.py"),
        ("note.txt", b"x", "holds no environment"),
        ("a.jsonl", b'{"source": "x", "id": "1"}\n{"source": "y", "id": "1"}', "2 environments of the id 1"),
    ],
)
def test_a_pool_that_cannot_be_read_names_file_and_fix(name: str, content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=told):
        load_pool(tmp_path)


def test_a_pool_that_is_not_there_is_told() -> None:
    with pytest.raises(CorpusError, match=r"no pool folder at .*corpus\.path"):
        load_pool(Path("nowhere"))


def test_a_changed_hint_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class AEnv: ...\n")
    (tmp_path / "a.md").write_text("look left\n")
    before = recipe_digest(fixed(tmp_path), tmp_path)
    (tmp_path / "a.md").write_text("look right\n")
    assert recipe_digest(fixed(tmp_path), tmp_path) != before


@pytest.mark.parametrize("over", [{"designer": "trained"}, {"design": {"environments": 6, "attempts": 2}}])
def test_a_recipe_that_would_train_nobodys_designs_is_refused(over: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match='pool = "fixed" needs designer = "frozen"'):
        fixed(**over)


def test_the_published_rules_go_with_a_pool_too() -> None:
    recipe = fixed(algorithm="published")
    assert not recipe.design.hint_by_second_call
    assert recipe.rollout.unterminated_return == "zero"


def drawn(recipe: Recipe, documents: Sequence[Document], generation: int) -> list[str]:
    memory: dict[int, list[object]] = {slot: [] for slot in range(recipe.design.environments)}
    return [slot.document.document_id for slot in fill_slots("run", recipe, documents, generation, 0, memory)]  # type: ignore[arg-type]  # empty lists


def test_every_environment_of_a_skill_is_drawn_once_a_pass_and_whole(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"e{number}.py").write_text(f"class E{number}Env:\n    pass  # " + "word " * 50)
    recipe = fixed(tmp_path, environments=2, skills=["Optimization"])
    documents = recipe_documents(recipe, tmp_path)
    passes = [drawn(recipe, documents, generation) for generation in range(4)]
    assert sorted(passes[0] + passes[1]) == sorted(passes[2] + passes[3]) == [f"e{number}.py" for number in range(4)]
    assert all(len(one.text.split()) > recipe.corpus.max_words for one in documents)


def test_a_slots_environment_is_proposed_as_it_stands_without_tokens() -> None:
    recipe = fixed(environments=3)
    documents = recipe_documents(recipe, ANSWERS)
    slots = fill_slots("run", recipe, documents, 0, 0, {slot: [] for slot in range(3)})
    request = DesignRequested(
        run_id="run", event_id="u", unit_id="u", generation=0, design_attempt=0, policy_version=0, settings=SamplingSettings(),
        slots=slots,
    )  # fmt: skip
    at = Reference(topic="t", partition=0, offset=0, id="u")
    proposed = [record for _, record in PooledDesigns().run(request, at)]
    for slot, one in zip(slots, proposed, strict=True):
        assert isinstance(one, EnvProposed)
        assert (one.env_id, one.source, one.hint) == (slot.env_id, slot.document.text, slot.document.hint)
        assert one.hint
        assert (one.completion_tokens, one.spans, one.parse_error, one.lost) == (b"", [], "", "")
    assert len({one.source for one in proposed if isinstance(one, EnvProposed)}) == 3
    lost = [record for _, record in PooledDesigns().give_up(request, at, "gone")]
    assert all(isinstance(one, EnvProposed) and one.lost == "gone" and not one.source for one in lost)
