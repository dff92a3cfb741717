"""The sampler for a CPU (or one GPU): any transformers causal language model with full attention, from an ordinary folder.

In: a Hugging Face folder with safetensors. Out: samples with log-probabilities. Called by the design and rollout workers and by
evaluation. Against `generate` it drops finished rows, computes a prompt that several requests share once, keeps rows ragged and
the turns of a conversation in the cache, and draws by a counter, so that a result depends on the request's own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from infra.lmhead import exact_head
from schemas.common import unpack_ints
from schemas.errors import CanaryError, ModelError, SettingsError
from schemas.train import PolicyPublished
from workers.samplers.base import SampleRequest, SampleResult, SamplingInterrupted
from workers.samplers.cache import RaggedCache
from workers.samplers.canary import check_canary
from workers.samplers.decoding import Decoding

if TYPE_CHECKING:
    from torch import Tensor

ATTENTION = "spade_ragged"
PREFILL_TOKENS = 16_384  # padded tokens of one forward pass over prompts
INTERRUPT_EVERY = 8  # decoding steps between looks at `interrupted`


class TransformersSampler:
    """See base.Sampler. `kv_bytes` bounds the cache: a batch that needs more is sampled in parts, without reuse between turns."""

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16"] = "float32",
        device: str = "cpu",
        threads: int = 1,
        kv_bytes: int = 2 * 1024**3,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.policy_version = -1
        self.policy_digest = ""
        self._dtype = dtype
        self._device = device
        self._threads = threads
        self._kv_bytes = kv_bytes
        self._interrupted = interrupted
        self._model: Any = None
        self._cache: RaggedCache | None = None
        self._sessions: dict[str, tuple[int, list[int]]] = {}  # session -> cache row, tokens whose keys it holds

    @property
    def context_tokens(self) -> int:
        """See base.Sampler."""
        if self._model is None:
            raise ModelError("nothing was loaded into the sampler", "Call load first")
        return int(self._model.config.max_position_embeddings)

    def load(self, published: PolicyPublished, folder: Path) -> None:
        """See base.Sampler."""
        import torch

        torch.set_num_threads(self._threads)  # of the calling thread too
        model = _read_model(folder, self._dtype, self._device)
        before, self._model = self._model, model
        self.reset_cache()
        try:
            with torch.inference_mode():
                check_canary(published, self._canary(unpack_ints(published.canary.tokens)), self._dtype)
        except CanaryError:
            self._model = before
            raise
        self.policy_version, self.policy_digest = published.version, published.digest

    def load_unpublished(self, folder: Path, version: int, digest: str) -> None:
        """Takes over a folder that no trainer has published, so that there is no canary to hold it against: evaluation only."""
        self._model = _read_model(folder, self._dtype, self._device)
        self.reset_cache()
        self.policy_version, self.policy_digest = version, digest

    def reset_cache(self) -> None:
        """See base.Sampler."""
        self._cache, self._sessions = None, {}

    def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """See base.Sampler."""
        import torch

        if not requests:
            return []
        torch.set_num_threads(self._threads)
        limits = [self._limit(request) for request in requests]
        columns = max(len(request.prompt) + limit for request, limit in zip(requests, limits, strict=True))
        rows = max(1, self._kv_bytes // (columns * self._bytes_per_token()))
        with torch.inference_mode():
            if len(requests) <= rows:
                return self._sample(requests, limits, columns)
            results: list[SampleResult] = []
            for start in range(0, len(requests), rows):
                self.reset_cache()
                results += self._sample(requests[start : start + rows], limits[start : start + rows], columns)
            self.reset_cache()
            return results

    def _sample(self, requests: Sequence[SampleRequest], limits: Sequence[int], columns: int) -> list[SampleResult]:
        """One batch that fits into the cache."""
        known = [i for i, request in enumerate(requests) if self._continues(request)]
        fresh = [i for i in range(len(requests)) if i not in set(known)]
        order = [*known, *fresh]
        requests, limits = [requests[i] for i in order], [limits[i] for i in order]
        cache = self._new_cache(len(requests), columns)
        logits = self._feed(cache, requests, len(known))
        state = Decoding(requests, limits, logits.shape[-1], logits)
        state.take(logits)
        state.shrink(cache)
        steps = 0
        while state.active:
            steps += 1
            if steps % INTERRUPT_EVERY == 0 and self._interrupted():
                self.reset_cache()
                raise SamplingInterrupted
            rows = slice(0, state.active)
            positions = state.positions[rows].unsqueeze(-1)
            state.take(self._forward(cache, state.tokens[rows].unsqueeze(-1), positions)[:, -1])
            state.shrink(cache)
        results = state.results()
        self._remember(cache, state, results)
        places = sorted(range(len(order)), key=order.__getitem__)
        return [results[place] for place in places]

    def _feed(self, cache: RaggedCache, requests: Sequence[SampleRequest], known: int) -> Tensor:
        """Computes all prompts into the cache; the logits [rows, vocabulary] after each. The first `known` rows continue."""
        import torch

        parts = []
        if known:
            rows = [self._sessions[request.session] for request in requests[:known]]
            old = self._cache
            assert old is not None  # sessions live in a cache
            longest = max(len(tokens) for _, tokens in rows)
            sources = torch.tensor([row for row, _ in rows], device=self._device)
            cache.copy_rows(old, sources, torch.arange(known, device=self._device), longest)
            pieces = [request.prompt[len(tokens) :] for request, (_, tokens) in zip(requests, rows, strict=False)]
            parts.append(self._prefill(cache, pieces, [len(tokens) for _, tokens in rows]))
        self.reset_cache()
        if known < len(requests):
            parts.append(self._feed_fresh(cache, requests, known))
        return torch.cat(parts)

    def _feed_fresh(self, cache: RaggedCache, requests: Sequence[SampleRequest], known: int) -> Tensor:
        """Prompts from nothing into the rows from `known` on, each distinct one once, long ones in passes with long ones."""
        import torch

        distinct: dict[tuple[int, ...], list[int]] = {}
        for row in range(known, len(requests)):
            distinct.setdefault(tuple(requests[row].prompt), []).append(row)
        prompts = sorted(distinct, key=len)
        logits: Tensor | None = None
        while prompts:
            longest = len(prompts[-1])
            group = [prompts.pop() for _ in range(min(len(prompts), max(1, PREFILL_TOKENS // longest)))]
            scratch = self._new_cache(len(group), longest)
            last = self._prefill(scratch, [list(prompt) for prompt in group], [0] * len(group))
            rows = torch.tensor([row for prompt in group for row in distinct[prompt]], device=self._device)
            sources = torch.tensor([i for i, prompt in enumerate(group) for _ in distinct[prompt]], device=self._device)
            cache.copy_rows(scratch, sources, rows, longest)
            if logits is None:
                logits = last.new_empty(len(requests) - known, last.shape[-1])
            logits[rows - known] = last[sources]
        assert logits is not None  # there is at least one prompt
        return logits

    def _prefill(self, cache: RaggedCache, pieces: Sequence[list[int]], starts: Sequence[int]) -> Tensor:
        """Feeds pieces (of any length >= 1) at their starts into the cache's first rows; logits [rows, vocabulary] after each.

        Padding stands behind a piece and repeats its last token at its last position, which writes the same keys once more.
        """
        import torch

        width = max(map(len, pieces))
        tokens = torch.tensor([piece + [piece[-1]] * (width - len(piece)) for piece in pieces], device=self._device)
        ends = torch.tensor([start + len(piece) - 1 for piece, start in zip(pieces, starts, strict=True)], device=self._device)
        positions = torch.tensor(starts, device=self._device).unsqueeze(-1) + torch.arange(width, device=self._device)
        positions = torch.minimum(positions, ends.unsqueeze(-1))
        hidden = self._hidden(cache, tokens, positions)
        last = hidden[torch.arange(len(pieces), device=self._device), [len(piece) - 1 for piece in pieces]]
        return self._head(last)

    def _forward(self, cache: RaggedCache, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits [rows, new, vocabulary] of tokens [rows, new] at positions [rows, new]."""
        return self._head(self._hidden(cache, tokens, positions))

    def _hidden(self, cache: RaggedCache, tokens: Tensor, positions: Tensor) -> Tensor:
        mask = cache.begin(positions)
        output = self._model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._model.get_output_embeddings()(hidden)
        return logits.float()

    def _continues(self, request: SampleRequest) -> bool:
        row = self._sessions.get(request.session) if request.session else None
        return row is not None and len(request.prompt) > len(row[1]) and request.prompt[: len(row[1])] == row[1]

    def _remember(self, cache: RaggedCache, state: Decoding, results: Sequence[SampleResult]) -> None:
        """Keeps the rows of sessions; the last token drawn was never fed, so its keys are not among them."""
        if not any(request.session for request in state.requests):
            return
        self._cache = cache
        for row, number in enumerate(state.order.tolist()):
            request = state.requests[number]
            if request.session:
                self._sessions[request.session] = (row, request.prompt + results[number].tokens[:-1])

    def _new_cache(self, rows: int, columns: int) -> RaggedCache:
        import torch

        config = self._model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        shape = (config.num_hidden_layers, 2, rows, heads, columns, _head_size(config))
        return RaggedCache(torch.empty(shape, dtype=self._model.dtype, device=self._device))

    def _bytes_per_token(self) -> int:
        config = self._model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * _head_size(config) * self._model.dtype.itemsize)

    def _limit(self, request: SampleRequest) -> int:
        """Tokens that the completion may have: the request's bound, and what the model's context leaves."""
        context = self.context_tokens
        if not request.prompt or len(request.prompt) >= context:
            raise SettingsError(
                f"a prompt of {len(request.prompt)} tokens does not fit the model's context of {context}",
                "Make rollout.context_tokens or corpus.max_words smaller",
            )
        return min(request.settings.max_tokens, context - len(request.prompt))

    def _canary(self, tokens: list[int]) -> list[float]:
        """Log-probabilities of tokens[1:], plain; the second half of the text continues the cache of the first."""
        import torch

        row = torch.tensor([tokens], device=self._device)
        positions = torch.arange(len(tokens), device=self._device).unsqueeze(0)
        cache, half = self._new_cache(1, len(tokens)), max(1, len(tokens) // 2)
        parts = (slice(0, half), slice(half, len(tokens) - 1))
        logits = torch.cat([self._forward(cache, row[:, part], positions[:, part]) for part in parts], 1)
        seen: list[float] = logits[0].log_softmax(-1).gather(-1, row[0, 1:].unsqueeze(-1)).squeeze(-1).tolist()
        return seen


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _read_model(folder: Path, dtype: str, device: str) -> Any:
    """The model in a folder, in evaluation mode. Raises ModelError."""
    import torch
    from safetensors import SafetensorError
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    AttentionInterface.register(ATTENTION, _attend)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation=ATTENTION,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as problem:
        first = str(problem).strip().splitlines() or [type(problem).__name__]
        raise ModelError(
            f"{folder} is no loadable model: {first[0]}",
            "Name an ordinary Hugging Face folder with config.json and model.safetensors",
        ) from problem
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ModelError(
            f"{folder} has layers of kinds {sorted(kinds)}", "This sampler knows full attention only; use vLLM for this model"
        )
    model = model.to(device).eval()
    exact_head(model, constant=True)
    return model


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Scaled dot-product attention over shared key-value heads, without copying them for each query head."""
    from torch.nn.functional import scaled_dot_product_attention

    output = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2), None
