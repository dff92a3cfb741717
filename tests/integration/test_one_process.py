"""A run in one process, with a list in place of the log: the same weights again over an added corpus, a procedural pool that
slides, a frozen designer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from infra.cli.app import run_app
from infra.cli.options import read_recipe
from infra.cli.poolmaking import by_levels, write_pool
from infra.corpus import CORPORA, load_corpus
from infra.corpus.pool import load_pool
from schemas.design import DesignRequested, EnvProposed
from schemas.rollout import RolloutFinished
from schemas.score import GenerationClosed
from schemas.settings import CorpusSettings
from schemas.train import PolicyPublished, StepFinished
from streams.levels import Ladder
from tests.bench.oneprocess import OneProcess
from tests.bench.pipeline import COMMON, IN_TURN, as_options, timing

pytestmark = pytest.mark.integration


def test_the_same_run_id_gives_the_same_weights_and_every_step_is_trained(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    assert run_app(["corpus", "add", str(CORPORA / "nano"), "--to", str(corpus)]) == 0
    recipe = read_recipe("tiny", as_options(COMMON | IN_TURN | {"schedule.steps": 2, "design.environments": 4}))
    drawn_from = CorpusSettings(path=str(corpus), tags=("math", "code"))
    recipe = recipe.model_copy(update={"corpus": drawn_from, "design": recipe.design.model_copy(update={"per_document": 1})})
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run = OneProcess(recipe, "one-process", tmp_path / name)
        digests.append(run.train())
        assert sum(isinstance(record, StepFinished) for record in run.records) == 3  # two with plays, one drain
        assert any(isinstance(record, RolloutFinished) and record.won for record in run.records)
        assert {record.version for record in run.records if isinstance(record, PolicyPublished)} == {0, 1, 2, 3}
        assert timing(run.records, 0.0, 0.0).window_s > 0
        asked = [slot.document for record in run.records if isinstance(record, DesignRequested) for slot in record.slots]
        assert {one.tag for one in asked} == {"math", "code"}
        assert {one.document_id for one in asked} <= {one.document_id for one in load_corpus(corpus)}
    assert digests[0] == digests[1]


def test_a_procedural_pool_is_admitted_played_and_trained_and_slides_by_the_closings_alone(tmp_path: Path) -> None:
    lines = [line for line in by_levels(read_recipe("tiny"), 0) if line.family in ("chain", "walk", "logic")]
    write_pool(tmp_path / "pool", [msgspec.structs.replace(line, id=f"x{number}") for number, line in enumerate(lines)])
    pooled = {"pool": "procedural", "design.per_document": 1, "levels.rise_at": 0.01, "levels.tries": 1}
    small = {"schedule.steps": 3, "design.environments": 6, "rollout.plain_plays": 2, "rollout.hint_plays": 2, "rollout.seeds": 2}
    recipe = read_recipe("tiny", as_options(COMMON | IN_TURN | small | pooled))
    recipe = recipe.model_copy(update={"corpus": CorpusSettings(path=str(tmp_path / "pool"))})
    run = OneProcess(recipe, "procedural", tmp_path)
    run.train()
    ladder = Ladder(recipe, load_pool(tmp_path / "pool"))
    for record in run.records:
        if isinstance(record, GenerationClosed):
            ladder.note(record)
    asked = [record for record in run.records if isinstance(record, DesignRequested)]
    assert [one.generation for one in asked] == [0, 1, 2]
    for request in asked:
        newest = request.generation - 1 if request.generation else None
        wanted = [ladder.draw(request.generation, slot.slot, slot.skill, newest, []) for slot in request.slots]
        assert [slot.document for slot in request.slots] == wanted
    closed = [record for record in run.records if isinstance(record, GenerationClosed)]
    assert [one.valid for one in closed] == [6, 6, 6]
    steps = [record for record in run.records if isinstance(record, StepFinished)]
    assert [one.roles["agent"].samples for one in steps if not one.drain] == [6 * 4] * 3
    assert not any("designer" in one.roles and one.roles["designer"].samples for one in steps)


def test_a_frozen_designer_writes_with_version_zero_after_training_too(tmp_path: Path) -> None:
    small = {"schedule.steps": 2, "design.environments": 4, "rollout.plain_plays": 2, "rollout.hint_plays": 2, "rollout.seeds": 2}
    run = OneProcess(read_recipe("tiny", as_options(COMMON | IN_TURN | small | {"designer": "frozen"})), "frozen", tmp_path)
    run.train()
    written = [record for record in run.records if isinstance(record, EnvProposed)]
    assert {(one.generation, span.policy_version) for one in written for span in one.spans} == {(0, 0), (1, 0)}
    played = [record for record in run.records if isinstance(record, RolloutFinished)]
    assert {span.policy_version for one in played for span in one.spans} == {0, 1}
