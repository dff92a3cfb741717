"""From the records that a batch names to trajectories, and from those to micro batches of tensors, in one order.

In: BatchReady samples and their records (RolloutFinished, EnvProposed). Out: Trajectories, then MicroBatches. Called by
trainer/loop and trainer/engine. Samples stand in the order of the batch record and are then sorted by length, so that little is
padded; packed, nothing is. A record that does not fit its sample is an error: nothing read back is trusted. Never blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from schemas.common import Record, SamplingSettings, Span, VersionSpan, version_span
from schemas.design import EnvProposed
from schemas.errors import TrainingError
from schemas.rollout import RolloutFinished
from schemas.train import DESIGNER, Sample
from trainer.shares import fill_up, share_out

if TYPE_CHECKING:
    from torch import Tensor

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trajectory:
    """One sample with its tokens."""

    sample_id: str
    role: str
    advantage: float
    lag: int
    tokens: Ints  # [L], the whole text
    actions: Ints  # [n], positions of the sampled tokens in it, each >= 1
    sampled: Floats  # [n], log-probability when sampled
    settings: Ints  # [n], index into the batch's table of distributions


@dataclass(frozen=True)
class MicroBatch:
    """Trajectories of one forward pass: B rows padded on the right (under a causal mask padding changes nothing before it), or
    packed one after another in one row. Without a trajectory it is a filler: a pass that keeps step with other processes."""

    ids: Tensor  # [B, L] int64; packed: [1, T]
    row: Tensor  # [n] int64, row of each action token
    column: Tensor  # [n] int64, position whose output predicts it (its own minus 1)
    target: Tensor  # [n] int64, the token
    sampled: Tensor  # [n] float32
    advantage: Tensor  # [n] float32
    weight: Tensor  # [n] float32, of the role's loss in the batch's
    settings: Tensor  # [n] int64
    sample: Tensor  # [n] int64, which of the micro batch's trajectories it is of
    roles: tuple[str, ...]  # of each trajectory
    index: tuple[int, ...]  # their positions in the list
    gradient: bool  # False: no token of it has a gradient, it counts for the statistics only
    place: Tensor | None = None  # packed: [1, T] int64, each token's position in its own trajectory
    bounds: Tensor | None = None  # packed: [trajectories + 1] int32, where each begins in the row, and T; in main memory

    def on(self, device: str) -> MicroBatch:
        """The same, where the model is."""
        if device == "cpu":
            return self
        names = ("ids", "row", "column", "target", "sampled", "advantage", "weight", "settings", "sample")
        moved = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **moved, place=None if self.place is None else self.place.to(device))


def read_trajectories(
    samples: Sequence[Sample], records: Mapping[str, Record]
) -> tuple[list[Trajectory], list[SamplingSettings]]:
    """Trajectories in the batch's order, and the table of distributions that they were drawn from.

    Raises TrainingError naming a sample whose record is missing, lost, of another kind, or whose parts do not fit together.
    """
    table: dict[tuple[float, float, int], int] = {}
    found = []
    for sample in samples:
        record = records.get(sample.reference.id)
        if isinstance(record, RolloutFinished) and sample.role != DESIGNER:
            prompt, tokens, logprobs, spans = 0, _ints(record.tokens), _floats(record.logprobs), record.spans
        elif isinstance(record, EnvProposed) and sample.role == DESIGNER:
            before, written = _ints(record.prompt_tokens), _ints(record.completion_tokens)
            prompt, tokens = len(before), np.concatenate([before, written])
            logprobs, spans = np.concatenate([np.zeros(prompt, np.float32), _floats(record.logprobs)]), record.spans
        else:
            raise _unfit(sample, f"its record is {'missing' if record is None else type(record).__name__}")
        if isinstance(record, EnvProposed) and record.external:
            raise _unfit(sample, f"it was written by {record.external}, not by a policy of this run: it can't be trained")
        if record.lost:
            raise _unfit(sample, f"it was lost ({record.lost})")
        if sample.versions.oldest >= 0 and version_span(spans) != sample.versions:
            raise _unfit(sample, f"its spans are of {_told(version_span(spans))}, the batch says {_told(sample.versions)}")
        found.append(_trajectory(sample, tokens, logprobs, spans, prompt, table))
    return found, [SamplingSettings(temperature=t, top_p=p, top_k=k) for t, p, k in table]


def _trajectory(
    sample: Sample,
    tokens: Ints,
    logprobs: Floats,
    spans: Sequence[Span],
    shift: int,
    table: dict[tuple[float, float, int], int],
) -> Trajectory:
    if len(logprobs) != len(tokens):
        raise _unfit(sample, f"it has {len(tokens)} tokens and {len(logprobs)} log-probabilities")
    actions, settings, last = [], [], max(shift, 1)
    for span in spans:
        start, end = span.start + shift, span.end + shift
        if not last <= start <= end <= len(tokens):
            raise _unfit(sample, f"its span [{span.start}, {span.end}) does not fit its {len(tokens)} tokens")
        last = end
        key = (span.settings.temperature, span.settings.top_p, span.settings.top_k)
        actions.append(np.arange(start, end, dtype=np.int64))
        settings.append(np.full(end - start, table.setdefault(key, len(table)), dtype=np.int64))
    where = np.concatenate(actions) if actions else np.zeros(0, np.int64)
    return Trajectory(
        sample_id=sample.sample_id,
        role=sample.role,
        advantage=sample.advantage,
        lag=sample.lag,
        tokens=tokens,
        actions=where,
        sampled=logprobs[where],
        settings=np.concatenate(settings) if settings else np.zeros(0, np.int64),
    )


def pack(
    trajectories: Sequence[Trajectory],
    weights: Sequence[float],
    chosen: Sequence[int],
    micro_batch_tokens: int,
    *,
    all_gradients: bool = False,
    packed: bool = False,
    rank: int = 0,
    world: int = 1,
) -> list[MicroBatch]:
    """Micro batches of the chosen trajectories, at most `micro_batch_tokens` tokens each, padding counted (one sample may exceed
    it alone). Of `world` processes, the part of `rank`: each gets as many micro batches.

    Samples of advantage 0 have no gradient unless `all_gradients` (a KL term): they go apart, and last.
    """
    with_gradient: list[int] = []
    without: list[int] = []
    for position in chosen:
        trajectory = trajectories[position]
        if len(trajectory.actions):
            flat = not all_gradients and (trajectory.advantage == 0 or weights[position] == 0)
            (without if flat else with_gradient).append(position)
    lengths = [len(trajectory.tokens) for trajectory in trajectories]
    found = []
    for positions, gradient in ((with_gradient, True), (without, False)):
        shares = [_groups(lengths, share, micro_batch_tokens, packed) for share in share_out(lengths, positions, world)]
        groups = fill_up(shares, rank)
        found += [_collate(trajectories, weights, group, gradient, packed) if group else _filler(gradient) for group in groups]
    return found


def _groups(lengths: Sequence[int], positions: Sequence[int], limit: int, packed: bool) -> list[list[int]]:
    """Positions by falling length, cut where the tokens of a pass would exceed the limit: all of them, or rows x longest."""
    groups: list[list[int]] = []
    longest = total = 0
    for position in sorted(positions, key=lambda p: (-lengths[p], p)):
        size = total + lengths[position] if packed else (len(groups[-1]) + 1) * longest if groups else 0
        if not groups or size > limit:
            groups.append([])
            longest, total = lengths[position], 0
        groups[-1].append(position)
        total += lengths[position]
    return groups


def _collate(
    trajectories: Sequence[Trajectory], weights: Sequence[float], group: list[int], gradient: bool, packed: bool
) -> MicroBatch:
    import torch

    members = [trajectories[position] for position in group]
    counts = [len(member.actions) for member in members]
    # The last token predicts nothing that is trained.
    widths = [max(len(member.tokens) - 1, 1) for member in members]
    bounds = np.concatenate([[0], np.cumsum(widths)])
    ids = np.zeros((1, bounds[-1]) if packed else (len(members), max(widths)), dtype=np.int64)
    for number, member in enumerate(members):
        row, start = (0, bounds[number]) if packed else (number, 0)
        ids[row, start : start + len(member.tokens) - 1] = member.tokens[:-1]
    sample = np.repeat(np.arange(len(members)), counts)
    column = np.concatenate([member.actions - 1 for member in members])
    return MicroBatch(
        ids=torch.from_numpy(ids),
        row=torch.from_numpy(np.zeros_like(sample) if packed else sample),
        column=torch.from_numpy(column + bounds[sample] if packed else column),
        target=torch.from_numpy(np.concatenate([member.tokens[member.actions] for member in members])),
        sampled=torch.from_numpy(np.concatenate([member.sampled for member in members])),
        advantage=torch.from_numpy(np.repeat(np.array([member.advantage for member in members], np.float32), counts)),
        weight=torch.from_numpy(np.repeat(np.array([weights[position] for position in group], np.float32), counts)),
        settings=torch.from_numpy(np.concatenate([member.settings for member in members])),
        sample=torch.from_numpy(sample),
        roles=tuple(member.role for member in members),
        index=tuple(group),
        gradient=gradient,
        place=torch.from_numpy(np.concatenate([np.arange(width) for width in widths])[None]) if packed else None,
        bounds=torch.from_numpy(bounds.astype(np.int32)) if packed else None,
    )


def _filler(gradient: bool) -> MicroBatch:
    import torch

    none, zero = torch.zeros(0), torch.zeros(1, dtype=torch.int64)
    return MicroBatch(
        ids=zero[None],
        row=zero,
        column=zero,
        target=zero,
        sampled=none,
        advantage=none,
        weight=none,
        settings=zero,
        sample=zero,
        roles=(),
        index=(),
        gradient=gradient,
    )


def _ints(data: bytes) -> Ints:
    return np.frombuffer(data[: len(data) // 4 * 4], dtype="<i4").astype(np.int64)


def _floats(data: bytes) -> Floats:
    return np.frombuffer(data[: len(data) // 4 * 4], dtype="<f4").astype(np.float32)


def _told(versions: VersionSpan) -> str:
    return f"policies {versions.oldest} to {versions.newest}"


def _unfit(sample: Sample, why: str) -> TrainingError:
    where = f"{sample.reference.topic}:{sample.reference.partition}:{sample.reference.offset}"
    return TrainingError(
        f"sample {sample.sample_id} ({sample.role}) at {where} can't be trained: {why}", "The batch record is wrong"
    )
