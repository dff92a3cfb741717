"""What the optimizer holds of each parameter, by the parameter's name: one form for every ZeRO stage and number of processes.

In: DeepSpeed's optimizer. Out: whole tensors by name, in rank 0, and back. Called by trainer/engine for checkpoints, in every
process of the trainer at once. ZeRO keeps float32 masters and moments as flat pieces spread over the processes; a checkpoint of
such pieces fits one stage and one number only. This is DeepSpeed's universal checkpoint in kind (a tensor a parameter and state)
without its detour over files: its converter reads the pieces of all processes from a disk, after the fact and by pickle.
Bit for bit: pieces are put together as integers, so that no sum touches them. Blocks as long as the slowest process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from schemas.errors import TrainingError

MASTER, STEP = "master", "step"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Shard:
    """The piece of one parameter that this process's optimizer steps."""

    name: str
    shape: torch.Size
    flat: torch.Tensor | None  # what the optimizer steps; None: this process holds nothing of it
    start: int = 0  # of the piece in `flat`
    offset: int = 0  # of the piece in the parameter, flattened
    count: int = 0  # its length
    whole: bool = False  # each process holds all of it

    def piece(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its part of the flat tensor, or of a state beside it."""
        return tensor.detach().view(-1).narrow(0, self.start, self.count)


def base_optimizer(wrapped: Any) -> torch.optim.Optimizer:
    """Torch's optimizer below DeepSpeed's."""
    found: torch.optim.Optimizer = wrapped if isinstance(wrapped, torch.optim.Optimizer) else wrapped.optimizer
    return found


def find_shards(wrapped: Any, named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[Shard]:
    """A shard for each trained parameter, in their order."""
    if hasattr(wrapped, "fp32_partitioned_groups_flat"):
        return [_stage_three(wrapped, name, parameter) for name, parameter in named]
    if hasattr(wrapped, "single_partition_of_fp32_groups"):
        return [_flat_piece(wrapped, name, parameter) for name, parameter in named]
    return [Shard(name, p.shape, p, count=p.numel(), whole=True) for name, p in named]


def _flat_piece(wrapped: Any, name: str, parameter: Any) -> Shard:
    """Stages 1 and 2: a group's parameters lie one after another, cut into equal parts."""
    mapping = parameter._hp_mapping
    if mapping is None:
        return Shard(name, parameter.shape, None)
    here, there = mapping.get_hp_fragment_address(), mapping.lp_fragment_address
    flat = wrapped.single_partition_of_fp32_groups[mapping.param_group_index]
    return Shard(name, parameter.shape, flat, here.start, there.start, here.numel)


def _stage_three(wrapped: Any, name: str, parameter: Any) -> Shard:
    """Stage 3: each parameter is cut into equal parts, the last one filled up."""
    group, start, _ = wrapped.grad_position[wrapped.get_param_id(parameter)]
    part = int(parameter.ds_tensor.ds_numel)
    offset = part * distributed.get_rank()
    count = max(0, min(part, int(parameter.ds_numel) - offset))
    flat = wrapped.fp32_partitioned_groups_flat[group] if count else None
    return Shard(name, parameter.ds_shape, flat, int(start), offset, count)


def gather(shards: Sequence[Shard], wrapped: Any, *, masters: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and whole tensors, one after another, true in rank 0 only; `masters`: also the float32 copies of the weights."""
    state = base_optimizer(wrapped).state
    steps = _agreed([float(state[s.flat][STEP]) if s.flat is not None and s.flat in state else 0.0 for s in shards])
    for shard, step in zip(shards, steps, strict=True):
        if masters:
            yield f"{MASTER}/{shard.name}", _whole(shard, shard.flat)
        if step:
            yield f"{STEP}/{shard.name}", torch.tensor(step)
            for key in MOMENTS:
                yield f"{key}/{shard.name}", _whole(shard, None if shard.flat is None else state[shard.flat][key])


def _whole(shard: Shard, flat: torch.Tensor | None) -> torch.Tensor:
    """The parameter's tensor out of every process's piece, in main memory."""
    if shard.whole or distributed.get_world_size() == 1:
        assert flat is not None
        return shard.piece(flat).clone().reshape(shard.shape).cpu()
    device = flat.device if flat is not None else "cpu"
    whole = torch.zeros(shard.shape.numel(), dtype=torch.float32, device=device)
    if flat is not None:
        whole.narrow(0, shard.offset, shard.count).copy_(shard.piece(flat))
    bits = whole.view(torch.int32).cpu()
    distributed.reduce(bits, dst=0)
    return bits.view(torch.float32).reshape(shard.shape)


def _agreed(steps: list[float]) -> list[float]:
    """The largest of each over the processes."""
    if distributed.get_world_size() > 1:
        both = torch.tensor(steps, dtype=torch.float64)
        distributed.all_reduce(both, op=distributed.ReduceOp.MAX)
        steps = both.tolist()
    return steps


def put_back(shards: Sequence[Shard], wrapped: Any, state: Mapping[str, torch.Tensor], weight: str) -> None:
    """The reverse of `gather`. Where there are no masters, the weights (below the name `weight`) are.

    Raises TrainingError where the state holds no such parameter.
    """
    base = base_optimizer(wrapped)
    fresh: set[int] = set()
    for shard in shards:
        name = f"{MASTER}/{shard.name}"
        master = state[name if name in state else f"{weight}/{shard.name}"]
        _copy_piece(shard, master, shard.flat)
        stepped = f"{STEP}/{shard.name}" in state
        values = {key: state[f"{key}/{shard.name}"] for key in (STEP, *MOMENTS)} if stepped else {}
        if shard.flat is None:
            continue
        if not stepped:
            if id(shard.flat) not in fresh:
                base.state.pop(shard.flat, None)
            continue
        if id(shard.flat) not in fresh:
            fresh.add(id(shard.flat))
            _open_state(base, shard.flat)
        known = base.state[shard.flat]
        known[STEP].copy_(torch.maximum(known[STEP], values[STEP].to(known[STEP])))
        for key in MOMENTS:
            _copy_piece(shard, values[key], known[key])


def _open_state(base: torch.optim.Optimizer, flat: torch.Tensor) -> None:
    """Room for what is put back, all zero, where it stands: DeepSpeed points into these tensors."""
    known = base.state[flat]
    known.setdefault(STEP, torch.zeros((), dtype=torch.float32)).zero_()
    for key in MOMENTS:
        known.setdefault(key, torch.zeros_like(flat.detach())).zero_()


def _copy_piece(shard: Shard, whole: torch.Tensor, flat: torch.Tensor | None) -> None:
    if whole.numel() != shard.shape.numel():
        raise TrainingError(
            f"the checkpoint's {shard.name} has {whole.numel()} numbers, the model's {shard.shape.numel()}",
            "Use the model and the train.lora_* keys that the run began with",
        )
    if flat is not None:
        shard.piece(flat).copy_(whole.reshape(-1).narrow(0, shard.offset, shard.count))


class FromLead(Mapping[str, torch.Tensor]):
    """A state whose tensors lie in rank 0 and reach the others one at a time, as each is asked for in every process at once.

    `known`: the tensors in rank 0; elsewhere tensors of the same names, shapes and types, or what makes them.
    """

    def __init__(self, known: Mapping[str, torch.Tensor]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._known[name].contiguous()
        distributed.broadcast(tensor.reshape(-1).view(torch.uint8), src=0)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Outlines(Mapping[str, torch.Tensor]):
    """Room for tensors of given shapes and types, made anew each time one is asked for."""

    def __init__(self, outlines: Sequence[tuple[str, Sequence[int], str]]) -> None:
        self._outlines = {name: (tuple(shape), getattr(torch, kind)) for name, shape, kind in outlines}

    def __getitem__(self, name: str) -> torch.Tensor:
        shape, kind = self._outlines[name]
        return torch.empty(shape, dtype=kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outlines)

    def __len__(self) -> int:
        return len(self._outlines)


def outline(state: Mapping[str, torch.Tensor]) -> list[tuple[str, list[int], str]]:
    """Names, shapes and types of a state, from which Outlines makes room."""
    return [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in state.items()]
