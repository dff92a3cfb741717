"""vLLM takes new weights in place: between batches, between the turns of an episode, and never a mixture of old and new."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.dialects import load_dialect
from infra.examples import EXAMPLES
from schemas.common import SamplingSettings, version_span
from schemas.errors import CanaryError, ModelError
from schemas.recipes import build_recipe
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment
from tests.fakes.sandbox import FakeSandbox
from tests.vllm.smallpolicy import Policy, make_policy
from workers.episodes import Episode, Rules, play_all
from workers.policies import make_sampler
from workers.samplers.base import SampleRequest, SampleResult
from workers.samplers.vllm import VllmSampler
from workers.sessions import SessionTable

pytestmark = pytest.mark.vllm

SETTINGS = SamplingSettings(temperature=0.8, max_tokens=24)
ROOT = Path(__file__).parents[2]
KV_BYTES = 64 * 1024**2
THREE_TURNS = ("market_bill", "seating_order", "next_numbers")  # games that allow as many wrong answers
LONG = [5 + (7 * place) % 300 for place in range(700)]  # several blocks of the cache


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Policy]:
    return [make_policy(tmp_path_factory.mktemp(f"v{version}") / "policy", version) for version in (1, 2, 3)]


@pytest.fixture(scope="module")
def sampler(policies: list[Policy]) -> VllmSampler:
    loaded = VllmSampler(kv_bytes=KV_BYTES)
    loaded.load(policies[0].published, policies[0].folder)
    return loaded


def ask(prompt: list[int], seed: int = 7) -> SampleRequest:
    return SampleRequest(prompt=prompt, seed=seed, settings=SETTINGS, stop_ids=frozenset())


def worst(policy: Policy, request: SampleRequest, result: SampleResult) -> float:
    """The largest distance of a log-probability from a plain forward of the policy."""
    told = policy.logprobs(request.prompt + result.tokens, len(request.prompt), SETTINGS)
    return max(abs(one - other) for one, other in zip(told, result.logprobs, strict=True))


def test_each_policy_that_is_loaded_in_place_samples_as_itself_with_nothing_of_the_cache_before(
    policies: list[Policy], sampler: VllmSampler
) -> None:
    requests = [ask([*LONG, 5 + number], seed=number) for number in range(6)]  # a shared prompt of many blocks
    seen = []
    for policy in (*policies, *policies):
        sampler.load(policy.published, policy.folder)
        results = sampler.sample(requests)
        assert max(worst(policy, request, result) for request, result in zip(requests, results, strict=True)) <= 1e-4
        assert (sampler.policy_version, sampler.policy_digest) == (policy.version, f"digest-{policy.version}")
        seen.append([result.tokens for result in results])
    assert seen[:3] == seen[3:]
    assert len({str(tokens) for tokens in seen}) == 3


def test_the_cache_of_old_weights_would_have_been_seen(policies: list[Policy], sampler: VllmSampler) -> None:
    request = ask([*LONG, 9])
    sampler.load(policies[0].published, policies[0].folder)
    sampler.sample([request])
    sampler._engine.collective_rpc("take_policy", args=(str(policies[1].folder),))  # and no reset_prefix_cache
    assert worst(policies[1], request, sampler.sample([request])[0]) > 1e-2
    sampler.reset_cache()
    assert worst(policies[1], request, sampler.sample([request])[0]) <= 1e-4


def test_seeded_requests_with_prompts_longer_than_a_pass_are_answered(policies: list[Policy], sampler: VllmSampler) -> None:
    sampler.load(policies[0].published, policies[0].folder)
    requests = [ask([*([5 + number] * 3000), *LONG], seed=number) for number in range(3)]
    results = sampler.sample(requests)
    assert [len(result.tokens) for result in results] == [SETTINGS.max_tokens] * 3
    assert sampler.sample(requests[1:2])[0].tokens == results[1].tokens
    assert max(worst(policies[0], request, result) for request, result in zip(requests, results, strict=True)) <= 1e-4


def test_an_episode_goes_on_with_the_policy_that_is_loaded_between_its_turns(
    policies: list[Policy], sampler: VllmSampler
) -> None:
    examples = [example for example in EXAMPLES if example.name in THREE_TURNS]
    environments = [
        PlayEnvironment(env_id=f"e{n}", source=example.source, hint=example.hint, witness_min_return=1.0, reward_min=0.0)
        for n, example in enumerate(examples)
    ]
    episodes = [
        Episode(Play(play_id=f"{one.env_id}-{arm}", env_id=one.env_id, arm=arm, index=0, env_seed=5, sampling_seed=n), one, 3)
        for n, one in enumerate(environments)
        for arm in (PLAIN, HINTED)
    ]
    order: Iterator[Policy] = iter([policies[1], policies[2], policies[0]])

    def renew() -> None:
        policy = next(order)
        sampler.load(policy.published, policy.folder)

    sandbox, dialect = FakeSandbox(), load_dialect("games", policies[0].folder)
    play_all(episodes, sampler, SessionTable(sandbox, tries=1), dialect, Rules(SETTINGS, 3, 4000, "lowest"), before_turn=renew)
    by_version = {policy.version: policy for policy in policies}
    compared = 0
    for episode in episodes:
        assert [span.policy_version for span in episode.spans] == [2, 3, 1][: len(episode.spans)]
        for span in episode.spans:
            told = by_version[span.policy_version].logprobs(episode.tokens[: span.end], span.start, SETTINGS)
            pairs = zip(told, episode.logprobs[span.start : span.end], strict=True)
            assert max(abs(one - other) for one, other in pairs) <= 1e-4
            compared += 1
    assert compared >= 12
    assert {version_span(episode.spans).oldest for episode in episodes if len(episode.spans) == 3} == {1}


def test_without_the_remedy_for_tied_embeddings_the_canary_stops_the_new_policy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.vllm.unmended", str(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "CanaryError: policy 2" in answer.stdout


def test_a_folder_that_is_gone_or_cut_leaves_the_policy_before(
    policies: list[Policy], sampler: VllmSampler, tmp_path: Path
) -> None:
    sampler.load(policies[0].published, policies[0].folder)
    before = sampler.sample([ask([4, 5, 6])])
    (tmp_path / "cut").mkdir()
    whole = (policies[1].folder / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:-100])
    for folder in (tmp_path / "cut", tmp_path / "gone"):
        with pytest.raises(ModelError):
            sampler.load(policies[1].published, folder)
        assert sampler.policy_version == 1
        sampler.reset_cache()
        assert sampler.sample([ask([4, 5, 6])]) == before


def test_in_bfloat16_the_canary_passes_the_own_policy_and_stops_another(tmp_path_factory: pytest.TempPathFactory) -> None:
    own, other = (make_policy(tmp_path_factory.mktemp(f"b{n}") / "policy", n, dtype="bfloat16") for n in (1, 2))
    rounded = VllmSampler("bfloat16", kv_bytes=KV_BYTES)
    rounded.load(own.published, own.folder)
    rounded.load(other.published, other.folder)
    with pytest.raises(CanaryError):
        rounded.load(own.published, other.folder)
    assert rounded.policy_version == 2


def test_a_worker_with_the_recipes_sampler_holds_as_much_context_as_plays_have(policies: list[Policy]) -> None:
    recipe = build_recipe(
        {
            "setting": "games",
            "model": {"path": str(policies[0].folder), "dialect": "games"},
            "rollout": {"context_tokens": 600},
            "processes": {"sampler": "vllm", "kv_gib": 0.0625},
        }
    )
    sampler = make_sampler(recipe, lambda: False)
    assert sampler.context_tokens == 600
    assert sampler.policy_version == -1
    sampler.load(policies[2].published, policies[2].folder)
    assert len(sampler.sample([ask([3] * 590)])[0].tokens) == 10
