"""The client of OpenAI-compatible servers over a real server on loopback: tries, limits, refusals, the key, and what it makes of
answers; and a designer behind one, whose designs no trainer takes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.dialects import load_dialect
from infra.examples import EXAMPLES
from infra.telemetry import setup_logging
from schemas.codec import decode, encode
from schemas.common import Reference, SamplingSettings, unpack_ints
from schemas.design import DesignRequested, DesignSlot, Document, EnvProposed
from schemas.errors import ServerError, SettingsError, TrainingError
from schemas.recipes import build_recipe
from schemas.settings import ExternalSettings, Recipe
from schemas.topics import Topic
from schemas.train import DESIGNER, Sample
from tests.chatmodels import write_model
from tests.fakes.dialect import LetterDialect
from tests.fakes.dialect import encode as letters
from tests.loopbackmodel import Answer, LoopbackModel, echoes, fails, hangs_up, holds, is_silent, says, together, trickles
from trainer.packing import read_trajectories
from workers.external import ExternalWork, make_external_work
from workers.samplers.base import SampleRequest, SamplingInterrupted
from workers.samplers.endpoint import Endpoint, open_endpoint
from workers.samplers.openai import ServerSampler, TextRequest, TextResult, TextWriter

pytestmark = pytest.mark.integration

KEY = "sk-hunter-7-and-more"
AT = Reference(topic=Topic.ENV_PROPOSED.wire, partition=0, offset=0, id="e0")
GAME = next(example for example in EXAMPLES if example.setting == "games")
DESIGN = f"<think>\nAs before.\n</think>\n\n```python\n{GAME.source}```\n<hint>\n{GAME.hint}\n</hint>"


@pytest.fixture
def serve() -> Iterator[Callable[..., LoopbackModel]]:
    running: list[LoopbackModel] = []

    def start(*answers: Answer) -> LoopbackModel:
        running.append(LoopbackModel(*answers).__enter__())
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def endpoint(server: LoopbackModel, **options: Any) -> Endpoint:
    return Endpoint(
        server.url, options.pop("key", KEY), **{"first_pause_s": 0.01, "timeout_s": 20.0, "deadline_s": 60.0} | options
    )


def write(server: LoopbackModel, *prompts: str, settings: ExternalSettings | None = None, **options: Any) -> list[TextResult]:
    given = settings or ExternalSettings(model="m")
    sampling = SamplingSettings(temperature=0.6, top_p=0.95, top_k=20, max_tokens=50)
    asked = [TextRequest(prompt, 7 + number, sampling) for number, prompt in enumerate(prompts or ("hello",))]
    return TextWriter(endpoint(server, **options), given).write(asked)


def test_a_batch_is_asked_with_key_model_and_distribution_and_comes_back_in_its_order(
    serve: Callable[..., LoopbackModel],
) -> None:
    server = serve(echoes(lambda prompt: 0.2 if prompt == "first" else 0.0))
    assert [result.text for result in write(server, "first", "second", "third")] == ["first", "second", "third"]
    path, headers, body = next(one for one in server.asked if one[2]["messages"][0]["content"] == "second")
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "second"}],
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 50,
        "seed": 8,
    }


def test_what_the_server_takes_is_a_setting_and_without_a_key_none_is_sent(serve: Callable[..., LoopbackModel]) -> None:
    server = serve(says("x", "length"))
    settings = ExternalSettings(model="m", parameters=("top_k",), limit_word="max_completion_tokens")
    assert write(server, settings=settings, key="") == [TextResult("x", "length")]
    ((_, headers, body),) = server.asked
    assert "Authorization" not in headers
    assert (body["top_k"], body["max_completion_tokens"], "seed" in body, "max_tokens" in body) == (20, 50, False, False)


@pytest.mark.parametrize(
    "trouble",
    [fails(429, "slow down", Retry_After="0"), fails(503), fails(500), hangs_up, fails(200, "<html>"), holds([1])],
    ids=["busy", "unavailable", "broken", "hangs-up", "no-json", "no-object"],
)
def test_a_server_that_is_busy_or_ill_is_asked_again(serve: Callable[..., LoopbackModel], trouble: Answer) -> None:
    server = serve(trouble, trouble, says("at last"))
    assert [result.text for result in write(server)] == ["at last"]
    assert len(server.asked) == 3


def test_tries_end_at_their_limit_with_the_last_cause_and_without_the_key(serve: Callable[..., LoopbackModel]) -> None:
    server = serve(fails(503, f"no room for Bearer {KEY}\n"))
    with pytest.raises(ServerError) as told:
        write(server, tries=3)
    assert len(server.asked) == 3
    assert f"{server.url}/chat/completions: no answer in 3 tries of at most 3" in str(told.value)
    assert r"it answered 503: no room for Bearer (key)\n" in str(told.value)
    assert KEY not in str(told.value)


def test_a_pause_that_outlasts_the_deadline_is_not_waited_for(serve: Callable[..., LoopbackModel]) -> None:
    server = serve(fails(429, "", Retry_After="25"))
    with pytest.raises(ServerError, match="no answer in 1 tries of at most 5 within 5 s: it answered 429"):
        write(server, deadline_s=5.0)
    assert len(server.asked) == 1


@pytest.mark.parametrize("silence", [is_silent, trickles], ids=["silent", "trickling"])
def test_a_server_that_does_not_come_to_an_end_is_left_at_the_timeout(
    serve: Callable[..., LoopbackModel], silence: Answer
) -> None:
    server = serve(silence)
    with pytest.raises(ServerError, match=r"no answer in 2 tries of at most 2 within 60 s: nothing within 0.3 s"):
        write(server, tries=2, timeout_s=0.3)
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "fix"),
    [(401, "Check the key"), (403, "Check the key"), (404, "Check external.url"), (400, "Check external.model")],
)
def test_what_is_refused_is_asked_once_and_the_fix_is_named(serve: Callable[..., LoopbackModel], status: int, fix: str) -> None:
    server = serve(fails(status, f"Incorrect API key provided: {KEY}"))
    with pytest.raises(ServerError, match=rf"it refused with {status}: Incorrect API key provided: \(key\)\. {fix}"):
        write(server)
    assert len(server.asked) == 1


def test_a_redirect_is_not_followed_since_the_key_would_go_along(serve: Callable[..., LoopbackModel]) -> None:
    elsewhere = serve(says("caught"))
    server = serve(fails(307, "", Location=f"{elsewhere.url}/chat/completions"))
    with pytest.raises(ServerError, match="redirects are not followed"):
        write(server)
    assert elsewhere.asked == []


def test_nobody_at_the_address_is_told_after_the_tries() -> None:
    with LoopbackModel(says("x")) as server:
        gone = server.url
    with pytest.raises(ServerError, match=r"no answer in 2 tries of at most 2 .*[Cc]onnect"):
        Endpoint(gone, tries=2, first_pause_s=0.01).get("/models")


def test_one_that_fails_ends_the_batch(serve: Callable[..., LoopbackModel]) -> None:
    three = asyncio.Barrier(3)
    server = serve(together(three, fails(400)), together(three, is_silent))
    with pytest.raises(ServerError, match="refused with 400"):
        write(server, "a", "b", "c")
    assert server.left.wait(20)


def test_a_stop_leaves_the_server_at_once(serve: Callable[..., LoopbackModel]) -> None:
    server = serve(is_silent)
    with pytest.raises(SamplingInterrupted):
        write(server, interrupted=lambda: bool(server.asked))
    assert server.left.wait(20)


def test_no_more_requests_than_allowed_are_under_way(serve: Callable[..., LoopbackModel]) -> None:
    server = serve(together(asyncio.Barrier(3), echoes()))
    assert len(write(server, *(str(n) for n in range(9)), at_once=3)) == 9
    assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (says(None), TextResult("", "stop")),
        (says("a\ud800b", "content_filter"), TextResult("a\ufffdb", "stop")),
        (says("y" * 7000), TextResult("y" * 6400, "length")),
    ],
    ids=["nothing-said", "half-a-character", "longer-than-the-limit-can-be"],
)
def test_strange_answers_become_text_that_a_record_can_hold(
    serve: Callable[..., LoopbackModel], answer: Answer, result: TextResult
) -> None:
    assert write(serve(answer)) == [result]


def test_an_answer_without_a_message_is_told(serve: Callable[..., LoopbackModel]) -> None:
    with pytest.raises(ServerError, match="without a message"):
        write(serve(holds({"choices": []})))


def tokens_answer(ids: object, logprobs: object) -> Answer:
    return holds({"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}]})


MODELS = holds({"data": [{"id": "m", "max_model_len": 40}, {"id": "other", "max_model_len": 8}]})


def test_token_ids_go_out_and_come_back_with_their_log_probabilities(serve: Callable[..., LoopbackModel]) -> None:
    server = serve(MODELS, tokens_answer([5, 6, 2], [-0.5, -1, -0.25]))
    sampler = ServerSampler(endpoint(server), "m")
    settings = SamplingSettings(temperature=0.7, top_k=4, max_tokens=64)
    (result,) = sampler.sample([SampleRequest([3, 4], 11, settings, frozenset({2, 9}))])
    assert (result.tokens, result.logprobs, result.stop_reason) == ([5, 6, 2], [-0.5, -1.0, -0.25], "stop")
    asked = server.asked[1][2]
    assert (asked["prompt"], asked["seed"], asked["stop_token_ids"], asked["max_tokens"]) == ([3, 4], 11, [2, 9], 38)
    with pytest.raises(SettingsError, match="40"):
        sampler.sample([SampleRequest([3] * 40, 11, settings, frozenset())])


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        (None, [-1.0]),
        ([5], None),
        ([5, 6], [-1.0]),
        ([], []),
        ([-1], [-1.0]),
        ([2**31], [-1.0]),
        ([5], [math.nan]),
        ([True], [0]),
    ],
)
def test_an_answer_whose_tokens_cannot_be_trusted_is_refused(
    serve: Callable[..., LoopbackModel], ids: object, logprobs: object
) -> None:
    sampler = ServerSampler(endpoint(serve(MODELS, tokens_answer(ids, logprobs))), "m")
    with pytest.raises(ServerError, match=r"holds no token ids, or no log-probability for each\. .*use mode text"):
        sampler.sample([SampleRequest([3, 4], 11, SamplingSettings(max_tokens=8), frozenset())])


def test_a_model_that_the_server_does_not_have_is_named_with_those_that_it_has(serve: Callable[..., LoopbackModel]) -> None:
    with pytest.raises(ServerError, match=r"no max_model_len of 'x' \(it has m, other\)"):
        _ = ServerSampler(endpoint(serve(MODELS)), "x").context_tokens


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://models.example.com/v1", "send the key in plain text"),
        ("https://user:word@models.example.com/v1", "holds a user or password"),
        ("ftp://models.example.com/v1", "is no address"),
        ("models.example.com/v1", "is no address"),
        ("https://models.example.com/v1?key=1", "is no address"),
    ],
)
def test_an_address_that_would_show_the_key_or_is_none_is_refused_before_anything_is_sent(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        Endpoint(url, KEY)


def test_the_key_comes_from_a_file_or_a_variable_and_a_missing_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n# mine\n", encoding="utf-8")
    monkeypatch.setenv("MODEL_KEY", f" {KEY} ")
    places: list[dict[str, Any]] = [{"key_file": str(file)}, {"key_variable": "MODEL_KEY"}]
    for named in places:
        made = open_endpoint(ExternalSettings(url="https://models.example.com/v1", model="m", **named))
        assert made._key == KEY
        assert KEY not in repr(made)
    file.write_text("two words", encoding="utf-8")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key_file": str(file)}, "letters that no key has"),
        ({"key_file": str(tmp_path / "none")}, "can't be read"),
        ({"key_variable": "NO_SUCH_KEY"}, "holds no key"),
    ]
    for named, why in wrong:
        with pytest.raises(SettingsError, match=why) as told:
            open_endpoint(ExternalSettings(url="https://models.example.com/v1", model="m", **named))
        assert "two words" not in str(told.value)


def unit(setting: str = "games", slots: int = 2) -> DesignRequested:
    document = Document(document_id="d", title="T", text="Ships come and go.")
    skill = GAME.skill
    return DesignRequested(
        run_id="r",
        event_id="u",
        unit_id="u",
        generation=1,
        design_attempt=0,
        policy_version=4,
        settings=SamplingSettings(max_tokens=4096),
        slots=[
            DesignSlot(slot=n, design_attempt=0, env_id=f"e{n}", skill=skill, document=document, group="d", sampling_seed=50 + n)
            for n in range(slots)
        ],
    )


def external_recipe(server: LoopbackModel, key_file: Path, **changes: Any) -> Recipe:
    given = {"url": server.url, "model": "m", "key_file": str(key_file), "tries": 2} | changes.pop("external", {})
    key_file.write_text(KEY, encoding="utf-8")
    return build_recipe({"designer": "external", "external": given, "model": {"path": "m", "dialect": "games"}} | changes)


def design_over(server: LoopbackModel, folder: Path) -> list[EnvProposed]:
    """What the design worker makes of a unit whose designer is the server."""
    dialect = load_dialect("games", write_model(folder / "qwen", "qwen"))
    work = make_external_work(external_recipe(server, folder / "key"), dialect, lambda: False)
    outputs = work.run(unit(), AT)
    assert [topic for topic, _ in outputs] == [Topic.ENV_PROPOSED] * 2
    return [record for _, record in outputs if isinstance(record, EnvProposed)]


def test_a_designer_behind_a_server_writes_designs_of_no_policy(serve: Callable[..., LoopbackModel], tmp_path: Path) -> None:
    server = serve(says(DESIGN), says(DESIGN[:-8], "length"))
    proposals = design_over(server, tmp_path)
    whole, cut = sorted(proposals, key=lambda one: bool(one.parse_error))
    assert (whole.source.strip(), whole.hint, whole.stop_reason) == (GAME.source.strip(), GAME.hint.strip(), "stop")
    assert (cut.parse_error, cut.stop_reason) == ("the hint is never closed: the design is cut at its limit", "length")
    assert {body["seed"] for _, _, body in server.asked} == {50, 51}
    assert all("Ships come and go." in body["messages"][0]["content"] for _, _, body in server.asked)
    for one in proposals:
        assert one.external == f"m at {server.url}"
        assert (one.spans, one.prompt_tokens, one.completion_tokens, one.logprobs) == ([], b"", b"", b"")
        assert decode(Topic.ENV_PROPOSED, encode(one)) == one


def test_the_trainer_refuses_a_design_that_no_policy_of_the_run_wrote(
    serve: Callable[..., LoopbackModel], tmp_path: Path
) -> None:
    (first, _) = design_over(serve(says(DESIGN)), tmp_path)
    sample = Sample(reference=AT, sample_id="e0", role=DESIGNER, advantage=1.0, policy_version=4, lag=0)
    with pytest.raises(TrainingError, match=r"sample e0 .*written by m at http.* not by a policy of this run"):
        read_trajectories([sample], {"e0": first})


def test_in_token_mode_designs_keep_their_tokens_and_are_as_untrainable(serve: Callable[..., LoopbackModel]) -> None:
    written = [*letters("class AEnv|look"), 0]
    server = serve(holds({"data": [{"id": "m", "max_model_len": 500}]}), tokens_answer(written, [-0.5] * len(written)))
    sampler = ServerSampler(endpoint(server), "m")
    from workers.design import write_designs

    work = ExternalWork(lambda request: write_designs(request, sampler, LetterDialect()), "m at home")
    proposals = [record for _, record in work.run(unit(), AT) if isinstance(record, EnvProposed)]
    for one in proposals:
        assert (one.source, one.hint, one.external, one.spans) == ("class AEnv", "look", "m at home", [])
        assert unpack_ints(one.completion_tokens) == written
    lost = [record for _, record in work.give_up(unit(), AT, "its server is gone") if isinstance(record, EnvProposed)]
    assert [(one.env_id, one.lost, one.external) for one in lost] == [
        (f"e{n}", "its server is gone", "m at home") for n in (0, 1)
    ]


def test_the_key_stands_in_no_log_line_and_no_error(
    serve: Callable[..., LoopbackModel], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    setup_logging("design", "r", as_json=True)
    design_over(serve(says(DESIGN)), tmp_path)
    with pytest.raises(ServerError):
        design_over(serve(fails(500, f"Bearer {KEY}")), tmp_path)
    shown = "".join(capfd.readouterr())
    assert "designs come from an external model" in shown
    assert KEY not in shown


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"external": {"model": ""}}, r"needs external.url and external.model"),
        ({"external": {"key_variable": "K"}}, r"are both set"),
        ({"model": {"path": "m", "dialect": "nano"}}, r'external.mode must be "tokens"'),
    ],
)
def test_a_recipe_whose_external_designer_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with LoopbackModel(says("x")) as server, pytest.raises(SettingsError, match=why):
        external_recipe(server, tmp_path / "key", **changes)
