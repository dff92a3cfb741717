"""A run in one process, with a list in place of the log and an added corpus: the same weights whenever it is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.cli.app import run_app
from infra.cli.options import read_recipe
from infra.corpus import CORPORA, load_corpus
from schemas.design import DesignRequested
from schemas.rollout import RolloutFinished
from schemas.settings import CorpusSettings
from schemas.train import PolicyPublished, StepFinished
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
