"""A transformers model with a chat template plays and designs in both settings.

The sampler's cache over turns, the template's end tokens, limits and faults as data; and the log-probabilities are those of one
forward pass over what is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.dialects import load_dialect
from infra.examples import EXAMPLES
from infra.sampling import processed_logprobs
from schemas.common import SamplingSettings, unpack_floats, unpack_ints
from schemas.design import DesignRequested, DesignSlot, Document
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment
from tests.chatmodels import write_model
from tests.fakes.sandbox import FakeSandbox
from trainer.publish import write_policy
from workers.design import write_designs
from workers.episodes import Episode, Rules, play_all
from workers.samplers.transformers import TransformersSampler
from workers.sessions import SessionTable

SETTINGS = SamplingSettings(temperature=0.8, max_tokens=12)  # no truncation, whose edges are a matter of rounding
CONTEXT = 1100
FAULTS = {
    "no box",
    "a box is never closed",
    "no call and no answer",
    "a call or answer is never closed",
    "a thinking block is never closed",
}


@pytest.fixture(scope="module", params=["qwen", "llama", "gemma"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A random model of few tokens, in a folder as training publishes it."""
    import torch
    from tokenizers import Tokenizer
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(4)
    torch.set_num_threads(1)
    origin = write_model(tmp_path_factory.mktemp(request.param), request.param)
    vocabulary = Tokenizer.from_file(str(origin / "tokenizer.json")).get_vocab_size()
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(origin)
    folder = tmp_path_factory.mktemp(f"{request.param}-policy")
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    write_policy(folder, origin, weights, "float32")
    return model.eval(), folder


@pytest.mark.parametrize("setting", ["games", "tools"])
def test_plays_of_both_settings_end_by_their_limits_and_are_what_one_forward_pass_gives(
    policy: tuple[Any, Path], setting: str
) -> None:
    import torch

    model, folder = policy
    dialect = load_dialect(setting, folder)
    sampler = TransformersSampler(threads=1)
    sampler.load_unpublished(folder, 2, "d2")
    examples = [example for example in EXAMPLES if example.setting == setting][:2]
    environments = [
        PlayEnvironment(env_id=example.name, source=example.source, hint=example.hint, witness_min_return=1.0, reward_min=0.0)
        for example in examples
    ]
    plays = [
        Play(play_id=f"{environment.env_id}-{arm}", env_id=environment.env_id, arm=arm, index=0, env_seed=5, sampling_seed=9)
        for environment in environments
        for arm in (PLAIN, HINTED)
    ]
    episodes = [
        Episode(play, environment, 3) for play, environment in zip(plays, [e for e in environments for _ in "ab"], strict=True)
    ]
    play_all(episodes, sampler, SessionTable(FakeSandbox(), tries=1), dialect, Rules(SETTINGS, 3, CONTEXT, "lowest"))
    for episode in episodes:
        assert (episode.lost, len(episode.tokens), len(episode.logprobs)) == ("", len(episode.tokens), len(episode.tokens))
        assert episode.end_reason in ("turns", "truncated", "terminated", "context")
        assert len(episode.tokens) <= CONTEXT
        assert {turn.fault for turn in episode.turns} <= FAULTS
        for turn, span in zip(episode.turns, episode.spans, strict=True):
            ended = episode.tokens[span.end - 1] in dialect.play_stop_ids
            assert (turn.cut == "") == ended
            assert (turn.action_start, turn.action_end) == (span.start, span.end)
        with torch.no_grad():
            logits = model(torch.tensor([episode.tokens]), use_cache=False).logits[0]
        for span in episode.spans:
            told = processed_logprobs(logits[span.start - 1 : span.end - 1], SETTINGS)
            chosen = told.gather(-1, torch.tensor(episode.tokens[span.start : span.end]).unsqueeze(-1)).squeeze(-1)
            assert torch.allclose(chosen, torch.tensor(episode.logprobs[span.start : span.end]), atol=1e-4)
    assert any(episode.turns for episode in episodes)
    plain, hinted = episodes[0], episodes[1]
    assert len(hinted.tokens[: hinted.spans[0].start]) > len(plain.tokens[: plain.spans[0].start])


def test_a_design_that_never_comes_to_its_end_is_refused_with_the_reason(policy: tuple[Any, Path]) -> None:
    _, folder = policy
    dialect = load_dialect("tools", folder)
    sampler = TransformersSampler(threads=1)
    sampler.load_unpublished(folder, 2, "d2")
    document = Document(document_id="d", title="A quay", text="Ships come and go.")
    request = DesignRequested(
        run_id="r",
        event_id="u",
        unit_id="u",
        generation=0,
        design_attempt=0,
        policy_version=2,
        settings=SETTINGS,
        slots=[
            DesignSlot(
                slot=n, design_attempt=0, env_id=f"e{n}", skill="Data Retrieval", document=document, group="d", sampling_seed=n
            )
            for n in range(3)
        ],
    )
    for proposal in write_designs(request, sampler, dialect):
        tokens = unpack_ints(proposal.completion_tokens)
        ended = tokens[-1] in dialect.design_stop_ids
        assert proposal.stop_reason == ("stop" if ended else "length")
        assert proposal.parse_error.startswith("no python fence") or "thinking" in proposal.parse_error
        assert ("is cut after" in proposal.parse_error) != ended
        assert len(unpack_floats(proposal.logprobs)) == len(tokens)
        assert (proposal.source, proposal.hint) == ("", "")
