"""A run of a chat model in each setting, in one process: designs through the gate in its form, plays of both arms in the jail by
a real model over its own chat template, scores, optimizer steps, policies that can be spoken to.

The model is small and random, so the designs are written for it: they are the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.corpus.pool import load_pool
from infra.dialects import recipe_dialect
from infra.dialects.chat import ChatDialect
from infra.examples import EXAMPLES
from infra.policystore import PolicyStore
from infra.runs import find_folder
from schemas.common import unpack_ints
from schemas.design import EnvProposed, EnvRejected, EnvValidated, SlotsClosed
from schemas.recipes import build_recipe
from schemas.rollout import HINTED, RolloutFinished
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import DESIGNER, BatchReady, PolicyPublished, StepFinished
from tests.bench.oneprocess import OneProcess
from tests.chatmodels import write_model
from tests.loopbackmodel import LoopbackModel, says
from workers.external import make_external_work
from workers.samplers.base import Sampler, SampleRequest, SampleResult

pytestmark = pytest.mark.integration
SLOTS, STEPS = 3, 2


class WrittenDesigns:
    """In place of the designer's sampler: thinking, then an example as a design, token by token as the model would write it."""

    def __init__(self, inner: Sampler, dialect: ChatDialect, setting: str) -> None:
        self._inner, self._dialect = inner, dialect
        self._examples = [example for example in EXAMPLES if example.setting == setting]
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        results = []
        for _ in requests:
            example = self._examples[self._written % len(self._examples)]
            self._written += 1
            text = f"<think>\nAs before.\n</think>\n\n```python\n{example.source}```\n<hint>\n{example.hint}\n</hint>"
            template = self._dialect._template
            tokens = [*template._encode(text), min(template.stop_ids)]
            results.append(SampleResult(tokens, [-1.0] * len(tokens), "stop"))
        return results


class ChatRun(OneProcess):
    """See OneProcess."""

    def make_designer(self, recipe: Recipe) -> Sampler:
        dialect = recipe_dialect(recipe, Path(recipe.model.path))
        assert isinstance(dialect, ChatDialect)
        written: Any = WrittenDesigns(super().make_designer(recipe), dialect, recipe.setting)
        return written  # type: ignore[no-any-return] # it has all that a sampler has


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the qwen family with few random weights."""
    import torch
    from tokenizers import Tokenizer
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = write_model(tmp_path_factory.mktemp("chat"), "qwen")
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def chat_recipe(setting: str, model: Path, **changes: Any) -> Recipe:
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 16}
    given = {
        "setting": setting,
        "schedule": {"steps": STEPS, "interval": 1, "delay": 1, "lag": 0, "lead": 0, "memory_lag": 1},
        "design": {"environments": SLOTS, "attempts": 1, "units": 1, "sampling": {**sampling, "max_tokens": 4000}},
        "rollout": {
            "plain_plays": 2,
            "hint_plays": 2,
            "seeds": 2,
            "units": 1,
            "max_turns": 25,
            "context_tokens": 9000,
            "sampling": sampling,
            "train_hint_arm": True,
            "audit_share": 0.2,
        },
        "train": {"learning_rate": 1e-4},
        "memory": {"enabled": False},
        "model": {"path": str(model), "dialect": setting},
    }
    return build_recipe(given | changes)


@pytest.mark.parametrize("setting", ["games", "tools"])
def test_a_chat_model_designs_plays_and_trains_in_both_settings(setting: str, model: Path, tmp_path: Path) -> None:
    recipe = chat_recipe(setting, model)
    run = ChatRun(recipe, f"chat-{setting}", tmp_path)
    run.train()
    admitted = [one for one in run.records if isinstance(one, EnvValidated)]
    refused = [(one.rule, one.evidence) for one in run.records if isinstance(one, EnvRejected)]
    assert not refused
    assert len(admitted) == SLOTS * STEPS
    assert all({"form", "witness"} <= {proof.rule for proof in one.proof} for one in admitted)
    assert [len(one.members) for one in run.records if isinstance(one, SlotsClosed)] == [SLOTS] * STEPS
    plays = [one for one in run.records if isinstance(one, RolloutFinished)]
    assert len(plays) == SLOTS * STEPS * 4
    assert not any(play.lost for play in plays)
    assert {play.end_reason for play in plays} <= {"turns", "truncated", "terminated", "context"}
    for play in plays:
        assert all(bool(turn.cut) == (turn.action_end - turn.action_start == 16) or turn.fault for turn in play.turns)
        assert {turn.fault for turn in play.turns} != {""}, "a random model keeps no form"
    check_hints(plays, recipe, model)
    batches = [one for one in run.records if isinstance(one, BatchReady)]
    assert sum(sample.role == DESIGNER for batch in batches for sample in batch.samples) == SLOTS * STEPS
    finished = [one for one in run.records if isinstance(one, StepFinished)]
    assert len(finished) == STEPS + 1
    assert not any(step.skipped for step in finished)
    published = [one for one in run.records if isinstance(one, PolicyPublished)]
    folder = PolicyStore(run.run.policy_place).fetch(published[-1])
    assert recipe_dialect(recipe, folder).open_play("x", "y") == recipe_dialect(recipe, model).open_play("x", "y")


def test_a_fixed_pool_is_judged_played_and_trained_with_nobody_designing(model: Path, tmp_path: Path) -> None:
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 8}
    recipe = build_recipe(
        {
            "setting": "games",
            "pool": "fixed",
            "schedule": {"steps": STEPS, "interval": 1, "delay": 1, "lag": 0, "lead": 0, "memory_lag": 1},
            "design": {"environments": 6, "units": 2, "skills_active": 6},
            "rollout": {
                "plain_plays": 2,
                "hint_plays": 2,
                "seeds": 2,
                "units": 1,
                "max_turns": 1,
                "context_tokens": 600,
                "sampling": sampling,
            },
            "train": {"learning_rate": 1e-3},
            "corpus": {"path": "infra/pools/answers"},
            "model": {"path": str(model), "dialect": "games", "thinking": False},
        }
    )
    run = ChatRun(recipe, "pool", tmp_path)
    run.train()
    assert not [one for one in run.records if isinstance(one, EnvRejected)]
    pool = {one.text for one in load_pool(find_folder(recipe.corpus.path))}
    for closed in [one for one in run.records if isinstance(one, SlotsClosed)]:
        admitted = [one for one in run.records if isinstance(one, EnvValidated) and one.generation == closed.generation]
        assert {one.full_source for one in admitted} == pool, "each generation plays all six: a repetition is no fault here"
        assert (len(closed.members), closed.duplicates, closed.rejected) == (6, [], [])
    again = [one for one in run.records if isinstance(one, EnvValidated) and one.generation > 0]
    assert all(one.verdict_from for one in again), "an equal design takes the verdict that it had"
    batches = [one for one in run.records if isinstance(one, BatchReady)]
    samples = [sample for batch in batches for sample in batch.samples]
    assert len(samples) == STEPS * 6 * 2
    assert not any(sample.role == DESIGNER for sample in samples)
    steps = [one for one in run.records if isinstance(one, StepFinished)]
    assert sorted(trained for one in steps for trained in one.trained) == sorted(sample.sample_id for sample in samples)


class ServedRun(OneProcess):
    """See OneProcess: designs come from the recipe's external model."""

    def _open_work(self, recipe: Recipe) -> None:
        super()._open_work(recipe)
        dialect = recipe_dialect(recipe, Path(recipe.model.path))
        self._work[Topic.DESIGN_REQUESTED] = make_external_work(recipe, dialect, lambda: False)


def test_an_external_model_designs_and_the_run_trains_its_own_plays_only(model: Path, tmp_path: Path) -> None:
    examples = [example for example in EXAMPLES if example.setting == "games"][:SLOTS]
    written = [says(f"```python\n{example.source}```\n<hint>\n{example.hint}\n</hint>") for example in examples]
    with LoopbackModel(*written) as server:
        one = {"steps": 1, "interval": 1, "delay": 1, "lag": 0, "lead": 0, "memory_lag": 1}
        external = {"url": server.url, "model": "large"}
        run = ServedRun(
            chat_recipe("games", model, designer="external", external=external, schedule=one), "chat-external", tmp_path
        )
        run.train()
        name = f"large at {server.url}"
    proposed = [one for one in run.records if isinstance(one, EnvProposed)]
    assert [(one.external, one.spans) for one in proposed] == [(name, [])] * SLOTS
    assert [len(one.members) for one in run.records if isinstance(one, SlotsClosed)] == [SLOTS]
    plays = [one for one in run.records if isinstance(one, RolloutFinished)]
    assert len(plays) == SLOTS * 4
    trained = [sample for batch in run.records if isinstance(batch, BatchReady) for sample in batch.samples]
    assert {sample.sample_id for sample in trained} == {play.play_id for play in plays}
    assert [step.skipped for step in run.records if isinstance(step, StepFinished)] == ["", ""]


def check_hints(plays: Sequence[RolloutFinished], recipe: Recipe, model: Path) -> None:
    """Every play opens as the dialect opens it: the hint behind the observation in its own arm, nowhere else."""
    dialect = recipe_dialect(recipe, model)
    hints = {example.source: example.hint for example in EXAMPLES}
    for play in plays:
        first = play.turns[0]
        opening = unpack_ints(play.tokens)[: first.action_start]
        options = {hint: dialect.open_play(first.observation, hint) for hint in hints.values()}
        shown = [hint for hint, prompt in options.items() if prompt == opening]
        assert len(shown) == (play.arm == HINTED)
        assert (opening == dialect.open_play(first.observation, None)) == (play.arm != HINTED)
