"""What every sampler must keep, on a small random model with real weights: the sampled log-probabilities are those of a plain
float32 forward, a seed decides alone, turns reuse the cache without changing anything, and foreign weights never sample.

`--samplers vllm` holds vLLM against the same (`make test-vllm`)."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.sampling import processed_logprobs
from schemas.common import SamplingSettings, pack_floats, pack_ints, unpack_floats
from schemas.errors import CanaryError, ModelError, SettingsError
from schemas.train import Canary, PolicyPublished
from tests import samplerkinds
from tests.fakes.sampler import HashSampler
from tests.samplerkinds import SWITCH, load_sampler
from workers.samplers.base import Sampler, SampleRequest, SamplingInterrupted
from workers.samplers.canary import check_canary
from workers.samplers.transformers import TransformersSampler

VOCABULARY = 96
CANARY = list(range(5, 45))
DISTRIBUTIONS = [
    SamplingSettings(max_tokens=24),
    SamplingSettings(temperature=0.7, max_tokens=24),
    SamplingSettings(top_p=0.8, max_tokens=24),
    SamplingSettings(temperature=0.6, top_p=0.95, top_k=20, max_tokens=24),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a real sampler runs with each that `--samplers` names."""
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", metafunc.config.getoption("--samplers").split(","), scope="module")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    torch.set_num_threads(1)
    yield
    SWITCH.looks = None


def make_model(folder: Path, seed: int, family: str = "qwen3") -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": samplerkinds.HEAD_SIZE,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,  # peaked enough that truncation bites
    }
    if family == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**common, tie_word_embeddings=False))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**common, tie_word_embeddings=True))
    model.save_pretrained(folder)
    return model.eval()


def plain_logits(model: Any, tokens: list[int]) -> Any:
    """Logits [tokens, vocabulary] of one uncached forward pass."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def publication(model: Any, folder: Path, version: int = 3) -> PolicyPublished:
    import torch

    logprobs = plain_logits(model, CANARY).log_softmax(-1)[:-1].gather(-1, torch.tensor(CANARY[1:]).unsqueeze(-1)).squeeze(-1)
    return PolicyPublished(
        run_id="r",
        event_id=f"policy-{version}",
        version=version,
        digest=f"digest-{version}",
        place=str(folder),
        canary=Canary(tokens=pack_ints(CANARY), logprobs=pack_floats(logprobs.tolist())),
    )


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return make_model(folder, 0, request.param), folder


@pytest.fixture
def renew(kind: str, policy: tuple[Any, Path]) -> Callable[[], Sampler]:
    """Gives the real sampler with the policy loaded and nothing remembered."""
    return lambda: load_sampler(kind, publication(*policy), policy[1], type(policy[0]).__name__)


@pytest.fixture
def sampler(renew: Callable[[], Sampler]) -> Sampler:
    return renew()


@pytest.fixture(params=["real", "fake"])
def any_sampler(request: pytest.FixtureRequest, renew: Callable[[], Sampler], policy: tuple[Any, Path]) -> Sampler:
    """The real sampler, and the one that unit tests use in its place."""
    if request.param == "real":
        return renew()
    fake = HashSampler(VOCABULARY, 128)
    fake.load(publication(*policy), policy[1])
    return fake


@pytest.fixture
def ask() -> Callable[..., SampleRequest]:
    def build(
        prompt: list[int],
        seed: int = 7,
        settings: SamplingSettings = DISTRIBUTIONS[0],
        stop_ids: frozenset[int] = frozenset({1, 2}),
        session: str = "",
    ) -> SampleRequest:
        return SampleRequest(prompt=prompt, seed=seed, settings=settings, stop_ids=stop_ids, session=session)

    return build


def prompts(count: int) -> list[list[int]]:
    """Different lengths and, every third, a prompt that was there before."""
    return [[3 + (11 * (i - i % 3) + 5 * k) % 90 for k in range(1 + (i - i % 3) * 2 % 29)] for i in range(count)]


@pytest.mark.parametrize("settings", DISTRIBUTIONS, ids=["plain", "temperature", "top-p", "all"])
def test_logprobs_are_those_of_a_plain_float32_forward(
    policy: tuple[Any, Path], sampler: Sampler, ask: Callable[..., SampleRequest], settings: SamplingSettings
) -> None:
    requests = [ask(prompt, seed=100 + i, settings=settings) for i, prompt in enumerate(prompts(20))]
    compared = 0
    for request, result in zip(requests, sampler.sample(requests), strict=True):
        logits = plain_logits(policy[0], request.prompt + result.tokens)[len(request.prompt) - 1 : -1]
        expected = processed_logprobs(logits, settings)
        for place, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
            assert abs(float(expected[place, token]) - logprob) <= 1e-4
            compared += 1
    assert compared > 100


def test_the_seed_decides_whatever_the_companions(any_sampler: Sampler, ask: Callable[..., SampleRequest]) -> None:
    requests = [ask(prompt, seed=1000 + i) for i, prompt in enumerate(prompts(24))]
    together = any_sampler.sample(requests)
    backwards = any_sampler.sample(requests[::-1])[::-1]
    alone = [any_sampler.sample([request])[0] for request in requests]
    assert [r.tokens for r in together] == [r.tokens for r in backwards] == [r.tokens for r in alone]
    any_sampler.reset_cache()
    assert together == any_sampler.sample(requests)
    other = any_sampler.sample([ask(request.prompt, seed=request.seed + 1) for request in requests])
    assert sum(a.tokens != b.tokens for a, b in zip(together, other, strict=True)) > 18


def test_mixed_distributions_in_one_batch_sample_as_they_do_alone(sampler: Sampler, ask: Callable[..., SampleRequest]) -> None:
    requests = [ask(prompt, seed=i, settings=DISTRIBUTIONS[i % 4]) for i, prompt in enumerate(prompts(16))]
    together = sampler.sample(requests)
    assert [r.tokens for r in together] == [sampler.sample([request])[0].tokens for request in requests]


def test_a_completion_ends_with_its_stop_token_or_at_its_bound(any_sampler: Sampler, ask: Callable[..., SampleRequest]) -> None:
    short = SamplingSettings(max_tokens=3)
    requests = [
        ask(prompt, seed=i, settings=short if i % 2 else DISTRIBUTIONS[0], stop_ids=frozenset(range(8)))
        for i, prompt in enumerate(prompts(40))
    ]
    results = any_sampler.sample(requests)
    assert {result.stop_reason for result in results} == {"stop", "length"}
    for request, result in zip(requests, results, strict=True):
        assert len(result.tokens) == len(result.logprobs)
        assert not request.stop_ids & set(result.tokens[:-1])
        if result.stop_reason == "stop":
            assert result.tokens[-1] in request.stop_ids
        else:
            assert len(result.tokens) == request.settings.max_tokens
            assert result.tokens[-1] not in request.stop_ids


def test_a_continued_session_samples_what_a_fresh_prompt_would(
    policy: tuple[Any, Path], renew: Callable[[], Sampler], sampler: Sampler, ask: Callable[..., SampleRequest]
) -> None:
    first = [ask(prompt, seed=i, session=f"s{i}") for i, prompt in enumerate(prompts(18))]
    seen = {request.session: request.prompt + result.tokens for request, result in zip(first, sampler.sample(first), strict=True)}
    again: list[tuple[list[SampleRequest], list[list[int]]]] = []
    for turn in range(1, 3):
        piece = [50 + turn, 51, 52 + turn]
        left = [request for number, request in enumerate(first) if number % (turn + 1) == 0]
        requests = [ask(seen[r.session] + piece[: 1 + r.seed % 3], seed=r.seed + 500 * turn, session=r.session) for r in left]
        newcomer = ask([9, 8, 7], seed=99, session=f"late{turn}")
        continued = sampler.sample([newcomer, *requests])[1:]
        for request, result in zip(requests, continued, strict=True):
            logits = plain_logits(policy[0], request.prompt + result.tokens)[len(request.prompt) - 1 : -1]
            expected = processed_logprobs(logits, request.settings)
            assert all(abs(float(expected[k, t]) - result.logprobs[k]) <= 1e-4 for k, t in enumerate(result.tokens))
            seen[request.session] = request.prompt + result.tokens
        again.append((requests, [r.tokens for r in continued]))
    fresh = renew()
    for requests, tokens in again:
        fresh.reset_cache()
        assert [r.tokens for r in fresh.sample(requests)] == tokens


def test_a_batch_larger_than_the_cache_is_sampled_in_parts_with_the_same_tokens(
    policy: tuple[Any, Path], ask: Callable[..., SampleRequest]
) -> None:
    small, large = TransformersSampler(kv_bytes=6 * 60 * 2 * 2 * 2 * 32 * 4), TransformersSampler()  # about six rows
    for each in (small, large):
        each.load(publication(*policy), policy[1])
    requests = [ask(prompt, seed=i, session=str(i)) for i, prompt in enumerate(prompts(20))]
    assert [r.tokens for r in small.sample(requests)] == [r.tokens for r in large.sample(requests)]


def test_weights_that_are_not_the_published_ones_are_refused_and_the_old_policy_stays(
    policy: tuple[Any, Path], sampler: Sampler, ask: Callable[..., SampleRequest], tmp_path: Path
) -> None:
    folder = policy[1]
    request = ask([4, 5, 6])
    before = sampler.sample([request])
    stale = make_model(tmp_path / "other", 1, family_of(policy))
    with pytest.raises(CanaryError, match="policy 4"):
        sampler.load(publication(stale, folder, version=4), folder)  # the folder still holds the old weights
    assert (sampler.policy_version, sampler.policy_digest) == (3, "digest-3")
    assert sampler.sample([request]) == before
    sampler.load(publication(stale, tmp_path / "other", version=4), tmp_path / "other")
    assert (sampler.policy_version, sampler.policy_digest) == (4, "digest-4")
    assert sampler.sample([request]) != before


def test_log_probabilities_that_are_no_numbers_never_pass_the_canary(policy: tuple[Any, Path]) -> None:
    published = publication(*policy)
    told = unpack_floats(published.canary.logprobs)
    check_canary(published, told, "float32")
    check_canary(published, [value + 0.01 for value in told], "bfloat16")
    rounded = msgspec.structs.replace(published, canary=msgspec.structs.replace(published.canary, tolerance=1.0))
    check_canary(rounded, [value + 0.01 for value in told], "float32")
    with pytest.raises(CanaryError):  # the trainer's weights are rounded: the mean counts here too
        check_canary(rounded, [value + 0.9 for value in told], "float32")
    for wrong in ([math.nan, *told[1:]], [value + 0.01 for value in told], [-math.inf, *told[1:]]):
        with pytest.raises(CanaryError):
            check_canary(published, wrong, "float32")
    with pytest.raises(CanaryError):
        check_canary(published, [value + 0.11 for value in told], "bfloat16")


def test_half_of_the_new_weights_is_caught_by_the_canary(policy: tuple[Any, Path], sampler: Sampler, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    new = make_model(tmp_path / "new", 2, family_of(policy))
    mixed = tmp_path / "mixed"
    shutil.copytree(tmp_path / "new", mixed)
    old_weights, weights = load_file(make_folder(tmp_path / "old", 3, family_of(policy))), load_file(mixed / "model.safetensors")
    half = {name: old_weights[name] if "layers.1." in name else value for name, value in weights.items()}
    save_file(half, mixed / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CanaryError):
        sampler.load(publication(new, mixed, version=5), mixed)


def family_of(policy: tuple[Any, Path]) -> str:
    return str(policy[0].config.model_type)


def make_folder(folder: Path, seed: int, family: str) -> Path:
    make_model(folder, seed, family)
    return folder / "model.safetensors"


def test_a_folder_without_weights_is_named_with_the_fix(sampler: Sampler, policy: tuple[Any, Path], tmp_path: Path) -> None:
    shutil.copy(policy[1] / "config.json", tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"Name an ordinary Hugging Face folder"):
        sampler.load(publication(*policy), tmp_path)


def test_a_prompt_beyond_the_context_is_refused_and_one_near_it_is_cut_at_the_context(
    any_sampler: Sampler, ask: Callable[..., SampleRequest]
) -> None:
    with pytest.raises(SettingsError, match="128"):
        any_sampler.sample([ask([3] * 128)])
    result = any_sampler.sample([ask([3] * 120, stop_ids=frozenset())])[0]
    assert len(result.tokens) == 8
    assert result.stop_reason == "length"


def test_a_stop_ends_the_batch_without_results_and_leaves_nothing_behind(
    sampler: Sampler, ask: Callable[..., SampleRequest]
) -> None:
    long = [ask([3 + i, 4], seed=i, settings=SamplingSettings(max_tokens=100), stop_ids=frozenset()) for i in range(3)]
    before = sampler.sample(long)
    sampler.reset_cache()
    SWITCH.looks = 1
    with pytest.raises(SamplingInterrupted):
        sampler.sample(long)
    assert SWITCH.looks == -1
    SWITCH.looks = None
    assert sampler.sample(long) == before
