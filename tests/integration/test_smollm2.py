"""A real instruct model in its recipe: made from a package, held by the canary, playing in the jail, one step of it trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.cli.options import read_recipe
from infra.dialects import recipe_dialect
from infra.policystore import PolicyStore
from schemas.common import unpack_ints
from schemas.design import EnvRejected, EnvValidated
from schemas.rollout import RolloutFinished
from schemas.train import PolicyPublished, StepFinished
from tests.bench.oneprocess import OneProcess
from trainer.smollm2 import fetch_weights, make_smollm2

pytestmark = pytest.mark.integration


def test_smollm2_is_made_plays_and_trains_one_step(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make_smollm2(folder)
    written = (folder / "model.safetensors").stat()
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    make_smollm2(folder)
    assert (folder / "model.safetensors").stat() == written, "a folder that is whole is left as it is"

    shape = ["schedule.steps=1", "design.environments=2", "design.skills_active=2", "rollout.plain_plays=2", "rollout.seeds=2"]
    recipe = read_recipe("smollm2", [*shape, "rollout.units=1", f"model.path={folder}"])
    run = OneProcess(recipe, "smollm2", tmp_path / "run")
    run.train()
    assert not [one for one in run.records if isinstance(one, EnvRejected)]
    assert len([one for one in run.records if isinstance(one, EnvValidated)]) == 2
    plays = [one for one in run.records if isinstance(one, RolloutFinished)]
    assert len(plays) == 4
    dialect = recipe_dialect(recipe, folder)
    for play in plays:
        assert (play.lost, play.spans[0].policy_version) == ("", 0), "policy 0 passed its canary"
        turn = play.turns[0]
        assert "Write the answer in the form" in turn.observation
        sampled = unpack_ints(play.tokens)[turn.action_start : turn.action_end]
        assert dialect.read_turn(sampled).action == turn.action
    (first,) = [one for one in run.records if isinstance(one, StepFinished) if one.step == 0]
    assert (len(first.trained), first.skipped) == (4, "")
    published = [one for one in run.records if isinstance(one, PolicyPublished)]
    kept = PolicyStore(run.run.policy_place).fetch(published[-1])
    assert (kept / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_weights_that_are_not_those_of_the_digest_are_refused(tmp_path: Path) -> None:
    from infra.local.places import cache_dir
    from schemas.errors import ArtifactError

    real = fetch_weights(cache_dir())
    fake = tmp_path / real.relative_to(cache_dir())
    fake.parent.mkdir(parents=True)
    fake.write_bytes(b"GGUF of somebody else")
    with pytest.raises(ArtifactError, match=r"has digest .* is wanted\. Remove"):
        fetch_weights(tmp_path)
