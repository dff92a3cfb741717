"""The client of OpenAI-compatible servers against vLLM's own api_server, with a key, on loopback: token ids with the
log-probabilities of the processed distribution, text of a chat, refusals; and a frozen designer behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.dialects import load_dialect
from infra.examples import EXAMPLES
from infra.local.ports import free_ports
from schemas.common import Reference, SamplingSettings, unpack_floats, unpack_ints
from schemas.design import DesignRequested, DesignSlot, Document, EnvProposed
from schemas.errors import CanaryError, ServerError
from schemas.recipes import build_recipe
from schemas.settings import ExternalSettings, Recipe
from tests.integration.test_prometheus import listening
from tests.processlist import command_lines
from tests.vllm.smallpolicy import Policy, make_policy
from workers.external import make_external_work
from workers.samplers.base import SampleRequest
from workers.samplers.endpoint import Endpoint, open_endpoint
from workers.samplers.openai import ServerSampler, TextRequest, TextWriter
from workers.samplers.vllm import CPU_ENVIRONMENT, ENVIRONMENT

pytestmark = pytest.mark.vllm

KEY = "sk-hunter-7-and-more"
START_S = 240.0
LOOPBACK = {"0100007F"}
CONTEXT = 8000
AT = Reference(topic="t", partition=0, offset=0, id="u")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return make_policy(tmp_path_factory.mktemp("served") / "policy", 1)


@pytest.fixture(scope="module")
def url(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """As docs/TRAINING.md says that it is started; the key comes from the environment."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(policy.folder), "--served-model-name", "small", "--dtype", "float32"]
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--max-model-len", str(CONTEXT)]
    command += ["--kv-cache-memory-bytes", str(64 * 1024**2)]
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(CONTEXT)]  # see VllmSampler: seeds on a CPU
    given = {name: value for name, value in (ENVIRONMENT | CPU_ENVIRONMENT).items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(command, env=os.environ | given | {"VLLM_API_KEY": KEY}, stdout=file, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + START_S
        while not answers(f"http://127.0.0.1:{port}/health"):
            running = server.poll() is None and time.monotonic() < end
            assert running, log.read_text(errors="replace")[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)
    assert KEY not in log.read_text(errors="replace")


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def endpoint(url: str) -> Endpoint:
    return Endpoint(url, KEY, tries=2, timeout_s=120)


def requests(settings: SamplingSettings) -> list[SampleRequest]:
    prompts = [[9 + (number * 7 + place) % 300 for place in range(2 + number)] for number in range(8)]
    return [SampleRequest(prompt, 40 + number, settings, frozenset(range(9))) for number, prompt in enumerate(prompts)]


@pytest.mark.parametrize(
    "settings",
    [SamplingSettings(max_tokens=24), SamplingSettings(temperature=0.6, top_p=0.95, top_k=20, max_tokens=24)],
    ids=["plain", "all"],
)
def test_token_ids_come_back_with_the_log_probabilities_that_a_trainer_computes(
    policy: Policy, endpoint: Endpoint, settings: SamplingSettings
) -> None:
    sampler = ServerSampler(endpoint, "small")
    sampler.load(policy.published, policy.folder)
    asked = requests(settings)
    results = sampler.sample(asked)
    for request, result in zip(asked, results, strict=True):
        told = policy.logprobs(request.prompt + result.tokens, len(request.prompt), settings)
        assert max(abs(one - other) for one, other in zip(told, result.logprobs, strict=True)) <= 1e-4
        assert not request.stop_ids & set(result.tokens[:-1])
        assert (result.stop_reason == "stop") == (result.tokens[-1] in request.stop_ids)
    assert {result.stop_reason for result in results} == {"stop", "length"}
    assert [one.tokens for one in sampler.sample(asked[::-1])[::-1]] == [one.tokens for one in results]
    assert sampler.context_tokens == CONTEXT


def test_a_server_that_holds_other_weights_than_the_published_ones_is_found_out(endpoint: Endpoint, tmp_path: Path) -> None:
    other = make_policy(tmp_path / "policy", 2)
    sampler = ServerSampler(endpoint, "small")
    with pytest.raises(CanaryError, match="policy 2"):
        sampler.load(other.published, other.folder)
    assert sampler.policy_version == -1


def test_text_comes_back_with_its_end(endpoint: Endpoint) -> None:
    writer = TextWriter(endpoint, ExternalSettings(model="small", parameters=("seed", "top_k")))
    asked = [TextRequest("Say something.", seed, SamplingSettings(max_tokens=12, top_k=50)) for seed in (1, 2, 1)]
    first, second, again = writer.write(asked)
    assert first.stop_reason == "length"
    assert first == again
    assert first != second


def test_a_wrong_key_and_an_unknown_model_are_refused_with_the_fix(url: str, endpoint: Endpoint) -> None:
    text = [TextRequest("x", 1, SamplingSettings(max_tokens=2))]
    with pytest.raises(ServerError, match=r"refused with 401.*Check the key"):
        TextWriter(Endpoint(url, "sk-other"), ExternalSettings(model="small")).write(text)
    with pytest.raises(ServerError, match=r"refused with 404.*external\.model"):
        TextWriter(endpoint, ExternalSettings(model="large")).write(text)


def test_the_server_listens_on_loopback_only_has_no_developer_endpoints_and_shows_its_key_to_no_process_list(url: str) -> None:
    port = int(url.split(":")[2].split("/")[0])
    assert listening(port) == LOOPBACK
    for path in ("collective_rpc", "reset_prefix_cache", "pause", "sleep"):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data=b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(asked, timeout=20)
        assert told.value.code == 404
    lines = command_lines().values()
    assert any(str(port) in line for line in lines)
    assert not any(KEY in line for line in lines)


def recipe(url: str, policy: Policy, key_file: Path, mode: str) -> Recipe:
    key_file.write_text(KEY, encoding="utf-8")
    return build_recipe(
        {
            "setting": "games",
            "designer": "external",
            "model": {"path": str(policy.folder), "dialect": "games"},
            "rollout": {"context_tokens": CONTEXT},
            "external": {"url": url, "model": "small", "mode": mode, "key_file": str(key_file)},
        }
    )


@pytest.mark.parametrize("mode", ["tokens", "text"])
def test_a_frozen_designer_behind_the_server_writes_designs_that_nobody_trains(
    url: str, policy: Policy, tmp_path: Path, mode: str
) -> None:
    chosen = recipe(url, policy, tmp_path / "key", mode)
    assert open_endpoint(chosen.external).url == url
    dialect = load_dialect("games", policy.folder, prompt_tokens=CONTEXT - 64)
    settings = SamplingSettings(temperature=0.6, top_p=0.95, top_k=20, max_tokens=20)
    document = Document(document_id="d", title="T", text="Ships come and go.")
    slots = [
        DesignSlot(
            slot=n, design_attempt=0, env_id=f"e{n}", skill=EXAMPLES[0].skill, document=document, group="d", sampling_seed=n
        )
        for n in range(3)
    ]
    unit = DesignRequested(
        run_id="r", event_id="u", unit_id="u", generation=0, design_attempt=0, policy_version=0, settings=settings, slots=slots
    )
    work = make_external_work(chosen, dialect, lambda: False)
    proposals = [record for _, record in work.run(unit, AT) if isinstance(record, EnvProposed)]
    assert [one.env_id for one in proposals] == ["e0", "e1", "e2"]
    for one in proposals:
        assert (one.external, one.spans, one.stop_reason) == (f"small at {url}", [], "length")
        assert "is cut" in one.parse_error
        tokens = unpack_ints(one.completion_tokens)
        assert len(tokens) == len(unpack_floats(one.logprobs)) == (20 if mode == "tokens" else 0)
