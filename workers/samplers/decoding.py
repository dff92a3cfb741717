"""One batch while it is decoded: rows of a cache, what each has been given and has drawn, and which are done.

In: the rows' first logits. Out: tokens and log-probabilities by request. Called by samplers.transformers, which runs the model;
here nothing knows about models. Finished rows are moved behind the running ones, so that the passes shrink as rows end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from infra.sampling import invert, processed_logprobs
from workers.samplers.base import SampleRequest, SampleResult
from workers.samplers.drawing import uniforms

if TYPE_CHECKING:
    from torch import Tensor

    from workers.samplers.cache import RaggedCache

SHRINK_SHARE = 0.1  # finished rows among the running ones at which they are moved away


class Decoding:
    """State of a batch; row r of every tensor belongs to row r of the cache, `requests[order[r]]`."""

    def __init__(self, requests: Sequence[SampleRequest], limits: Sequence[int], vocabulary: int, device: Tensor) -> None:
        """`limits`: most tokens of each request. `device`: a tensor on the device to work on."""
        import torch

        count = len(requests)
        new = device.new_tensor
        self.requests = requests
        self.order = torch.arange(count, device=device.device)
        self.positions = new([len(request.prompt) for request in requests], dtype=torch.int64)
        self.tokens = torch.zeros(count, dtype=torch.int64, device=device.device)
        self.drawn = torch.zeros(count, dtype=torch.int64, device=device.device)
        self.running = torch.ones(count, dtype=torch.bool, device=device.device)
        self.limits = new(list(limits), dtype=torch.int64)
        self.seeds = new([request.seed for request in requests], dtype=torch.int64)
        self.groups = _group([_distribution(request) for request in requests])
        self.group = new(_numbers([_distribution(request) for request in requests]), dtype=torch.int64)
        stops = [request.stop_ids for request in requests]
        self.stop_set = new(_numbers(stops), dtype=torch.int64)
        self.stop_table = torch.zeros(len(_group(stops)), vocabulary, dtype=torch.bool, device=device.device)
        for number, request in enumerate(_group(stops)):
            self.stop_table[number, sorted(stops[request])] = True
        self.out_tokens = torch.zeros(count, max(limits), dtype=torch.int64, device=device.device)
        self.out_logprobs = torch.zeros(count, max(limits), dtype=torch.float32, device=device.device)
        self.active = count

    def take(self, logits: Tensor) -> None:
        """Draws the next token of every active row from logits [active, vocabulary]; rows that are done keep their last one."""
        import torch

        rows = slice(0, self.active)
        logprobs = self._logprobs(logits)
        drawn, running, order = self.drawn[rows], self.running[rows], self.order[rows]
        tokens = invert(logprobs, uniforms(self.seeds[rows], drawn))
        self.tokens[rows] = torch.where(running, tokens, self.tokens[rows])
        at = torch.where(running, drawn, drawn - 1)
        chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        self.out_logprobs[order, at] = torch.where(running, chosen, self.out_logprobs[order, at])
        self.out_tokens[order, at] = self.tokens[rows]
        self.positions[rows] += (running & (drawn > 0)).long()
        self.drawn[rows] = drawn + running.long()
        stopped = self.stop_table[self.stop_set[rows], self.tokens[rows]]
        self.running[rows] = running & ~stopped & (self.drawn[rows] < self.limits[rows])

    def shrink(self, cache: RaggedCache) -> None:
        """Moves finished rows behind the running ones once they are enough, in the cache too; their keys and values stay."""
        import torch

        running = self.running[: self.active]
        left = int(running.sum())
        if left and self.active - left < max(1, int(SHRINK_SHARE * self.active)):
            return
        ended = (~running[:left]).nonzero().squeeze(-1)
        late = running[left:].nonzero().squeeze(-1) + left
        if len(ended):
            cache.swap(ended, late, int(self.positions[: self.active].max()) + 1)
            moved = torch.arange(len(self.order), device=self.order.device)
            moved[ended], moved[late] = late, ended
            for name in ("order", "positions", "tokens", "drawn", "running", "limits", "seeds", "group", "stop_set"):
                setattr(self, name, getattr(self, name)[moved])
        self.active = left

    def results(self) -> list[SampleResult]:
        """What was drawn, by request."""
        counts = self.drawn[self.order.argsort()].tolist()
        tokens, logprobs = self.out_tokens.tolist(), self.out_logprobs.tolist()
        return [
            SampleResult(
                tokens=tokens[i][:count],
                logprobs=logprobs[i][:count],
                stop_reason="stop" if tokens[i][count - 1] in request.stop_ids else "length",
            )
            for i, (request, count) in enumerate(zip(self.requests, counts, strict=True))
        ]

    def _logprobs(self, logits: Tensor) -> Tensor:
        """Log-probabilities [active, vocabulary] of each row's own distribution."""
        if len(self.groups) == 1:
            return processed_logprobs(logits, self.requests[self.groups[0]].settings)
        logprobs = logits.float().clone()
        group = self.group[: self.active]
        for number, request in enumerate(self.groups):
            rows = (group == number).nonzero().squeeze(-1)
            if len(rows):
                logprobs[rows] = processed_logprobs(logits[rows], self.requests[request].settings)
        return logprobs


def _distribution(request: SampleRequest) -> tuple[float, float, int]:
    settings = request.settings
    return settings.temperature, settings.top_p, settings.top_k


def _group(values: Sequence[object]) -> list[int]:
    """The index of the first occurrence of each distinct value, in order of appearance."""
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        first.setdefault(value, index)
    return list(first.values())


def _numbers(values: Sequence[object]) -> list[int]:
    """For each value, which distinct value it is, in order of appearance."""
    seen: dict[object, int] = {}
    return [seen.setdefault(value, len(seen)) for value in values]
