"""Samplers over an OpenAI-compatible server: with token ids where the server gives them (vLLM), and of text from any.

In: SampleRequests, or prompts as text. Out: SampleResults, or text. Called by workers.external for designers that are not the
run's policy. Only what has token ids and log-probabilities of a policy of the run can be trained: ServerSampler gives both and
can prove a policy by its canary, but the weights are the server's own business; TextWriter gives neither, so its text never is.
What a server answers is not trusted: text is made whole Unicode and cut at what the limit can hold, ids and numbers are checked.
Both block up to the endpoint's deadline and raise ServerError and SamplingInterrupted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.common import SamplingSettings, unpack_ints
from schemas.errors import SettingsError
from schemas.settings import ExternalSettings
from schemas.train import PolicyPublished
from workers.samplers.base import SampleRequest, SampleResult, StopReason
from workers.samplers.canary import check_canary
from workers.samplers.endpoint import Endpoint

NO_TOKENS = "Start the server so that it returns token ids (vLLM, with --logprobs-mode processed_logprobs), or use mode text"
LETTERS = 128  # of a token, at most


@dataclass(frozen=True)
class TextRequest:
    """One completion of a conversation of one message. The seed is a wish: no server of others' promises to keep it."""

    prompt: str
    seed: int
    settings: SamplingSettings


@dataclass(frozen=True)
class TextResult:
    """What came back. `stop_reason` "length": cut at the limit."""

    text: str
    stop_reason: StopReason


class TextWriter:
    """Text in, text out, by chat completions: any model of any server. Untrainable by nature."""

    def __init__(self, endpoint: Endpoint, settings: ExternalSettings) -> None:
        self._endpoint, self._settings = endpoint, settings

    def write(self, requests: Sequence[TextRequest]) -> list[TextResult]:
        """One batch, results in the order of the requests."""
        path = "/chat/completions"
        answers = self._endpoint.post(path, [self._body(request) for request in requests])
        return [self._read(answer, request, path) for answer, request in zip(answers, requests, strict=True)]

    def _body(self, request: TextRequest) -> dict[str, Any]:
        settings, taken = request.settings, self._settings.parameters
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": [{"role": "user", "content": request.prompt}],
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            self._settings.limit_word: settings.max_tokens,
        }
        if "seed" in taken:
            body["seed"] = request.seed
        if "top_k" in taken and settings.top_k:
            body["top_k"] = settings.top_k
        return body

    def _read(self, answer: Mapping[str, Any], request: TextRequest, path: str) -> TextResult:
        choice = _choice(answer)
        message = choice.get("message")
        if not isinstance(message, dict):
            raise self._endpoint.refuse(path, f"it answered without a message: {str(dict(answer))[:300]}", "Use another server")
        content = message.get("content")
        text = _whole(content) if isinstance(content, str) else ""
        most = LETTERS * request.settings.max_tokens
        cut = choice.get("finish_reason") == "length" or len(text) > most
        return TextResult(text[:most], "length" if cut else "stop")


class ServerSampler:
    """See base.Sampler: token ids in and out by completions. `load` checks the server's weights and replaces none."""

    def __init__(self, endpoint: Endpoint, model: str, dtype: str = "float32") -> None:
        self.policy_version = -1
        self.policy_digest = ""
        self._endpoint, self._model, self._dtype = endpoint, model, dtype
        self._context = 0

    @property
    def context_tokens(self) -> int:
        """See base.Sampler; asked of the server once. Raises ServerError where it does not tell."""
        if not self._context:
            listed = self._endpoint.get("/models").get("data")
            entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            told = {str(one.get("id")): one.get("max_model_len") for one in entries}
            length = told.get(self._model)
            if not isinstance(length, int) or length < 1:
                raise self._endpoint.refuse(
                    "/models",
                    f"it tells no max_model_len of {self._model!r} (it has {', '.join(sorted(told)) or 'no model'})",
                    "Check external.model; with a server that is not vLLM use external.mode = text",
                )
            self._context = length
        return self._context

    def load(self, published: PolicyPublished, folder: Path) -> None:
        """See base.Sampler: raises CanaryError where the server holds other weights than the published ones."""
        tokens = unpack_ints(published.canary.tokens)
        check_canary(published, self._logprobs(tokens), self._dtype)
        self.policy_version, self.policy_digest = published.version, published.digest

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """See base.Sampler."""
        if not requests:
            return []
        path = "/completions"
        answers = self._endpoint.post(path, [self._body(request) for request in requests])
        return [self._read(answer, request, path) for answer, request in zip(answers, requests, strict=True)]

    def reset_cache(self) -> None:
        """See base.Sampler: the server's cache is its own."""

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        settings = request.settings
        return {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": self._limit(request),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "seed": request.seed,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }

    def _read(self, answer: Mapping[str, Any], request: SampleRequest, path: str) -> SampleResult:
        choice = _choice(answer)
        tokens, held = choice.get("token_ids"), choice.get("logprobs")
        logprobs = held.get("token_logprobs") if isinstance(held, dict) else None
        ids = tokens if isinstance(tokens, list) and all(type(one) is int and 0 <= one < 2**31 for one in tokens) else []
        told = logprobs if isinstance(logprobs, list) and all(map(_is_finite, logprobs)) else []
        if not 0 < len(ids) == len(told) <= request.settings.max_tokens:
            raise self._endpoint.refuse(path, "its answer holds no token ids, or no log-probability for each", NO_TOKENS)
        return SampleResult(
            tokens=ids, logprobs=list(map(float, told)), stop_reason="stop" if ids[-1] in request.stop_ids else "length"
        )

    def _logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probabilities of tokens[1:] at temperature 1, untruncated."""
        path = "/completions"
        body = {
            "model": self._model,
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 1.0,
            "top_p": 1.0,
            "prompt_logprobs": 0,
            "add_special_tokens": False,
        }
        (answer,) = self._endpoint.post(path, [body])
        places = _choice(answer).get("prompt_logprobs")
        try:
            return [float(place[str(token)]["logprob"]) for token, place in zip(tokens[1:], places[1:], strict=True)]  # type: ignore[index]
        except (TypeError, KeyError, ValueError) as problem:
            raise self._endpoint.refuse(path, "it gives no log-probabilities of a prompt", NO_TOKENS) from problem

    def _limit(self, request: SampleRequest) -> int:
        if not request.prompt or len(request.prompt) >= self.context_tokens:
            raise SettingsError(
                f"a prompt of {len(request.prompt)} tokens does not fit the server's context of {self.context_tokens}",
                "Give the server a longer one, or make rollout.context_tokens smaller",
            )
        return min(request.settings.max_tokens, self.context_tokens - len(request.prompt))


def _choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _whole(text: str) -> str:
    """The text with U+FFFD for halves of characters, which no record can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
