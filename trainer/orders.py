"""What rank 0 of the trainer has the other ranks do, and how an order gets there.

In: an order in rank 0. Out: the same order in each other rank. Called by trainer/team and trainer/follower. A key in the group's
store tells that an order is there and how long it is; the bytes, msgpack and no pickle, follow by broadcast, because a batch has
many megabytes. An order may be hours away: `take` looks at the store, which has no deadline of its own, and not at a collective.
Raises TrainingError where rank 0 is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from schemas.common import SamplingSettings
from schemas.errors import TrainingError
from trainer.packing import Trajectory

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # public, but missing in torch's __all__

LOOK_S = 60.0


class WireTrajectory(msgspec.Struct, frozen=True):
    """A Trajectory with its arrays as bytes: int64 and float32, little endian."""

    sample_id: str
    role: str
    advantage: float
    lag: int
    tokens: bytes
    actions: bytes
    sampled: bytes
    settings: bytes


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Start an engine in place of the one before."""

    folder: str
    settings_json: str
    seed: int
    reference: str


class Train(msgspec.Struct, frozen=True, tag="train"):
    """One step over a batch."""

    trajectories: list[WireTrajectory]
    table: list[SamplingSettings]


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Take a state, whose tensors come one by one."""

    outlines: list[tuple[str, list[int], str]]


class Canary(msgspec.Struct, frozen=True, tag="canary"):
    """Take part in a full forward."""

    tokens: list[int]


class State(msgspec.Struct, frozen=True, tag="state"):
    """Take part in gathering the state."""


class Weights(msgspec.Struct, frozen=True, tag="weights"):
    """Take part in gathering the weights."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """Leave."""


Order = Open | Train | Load | Canary | State | Weights | End


class Orders:
    """One end of the line between rank 0 and the others, in the group that stands."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = 0

    def give(self, order: Order) -> None:
        """Tells every other rank; returns when they have it."""
        data = msgspec.msgpack.encode(order)
        self._store.set(f"order-{self._number}", str(len(data)))
        self._number += 1
        _broadcast(data, len(data))

    def take(self) -> Order:
        """The next order, however long it takes. Raises TrainingError: rank 0 is gone."""
        key = f"order-{self._number}"
        while not self._is_there(key):
            pass
        length = int(self._store.get(key))
        self._number += 1
        return msgspec.msgpack.decode(_broadcast(None, length), type=Order)

    def _is_there(self, key: str) -> bool:
        from torch.distributed import DistNetworkError, DistStoreError

        try:
            self._store.wait([key], timedelta(seconds=LOOK_S))
        except DistNetworkError as problem:
            raise TrainingError("rank 0 of the trainer is gone", "Its own log says why") from problem
        except DistStoreError:  # nothing yet
            return False
        return True


def _broadcast(data: bytes | None, length: int) -> bytes:
    """`length` bytes from rank 0, in every rank."""
    import torch
    from torch import distributed

    room = torch.empty(length, dtype=torch.uint8) if data is None else torch.frombuffer(bytearray(data), dtype=torch.uint8)
    distributed.broadcast(room, src=0)
    return room.numpy().tobytes()


def on_wire(trajectories: Sequence[Trajectory]) -> list[WireTrajectory]:
    """As they are told to other ranks."""
    return [
        WireTrajectory(
            one.sample_id,
            one.role,
            one.advantage,
            one.lag,
            one.tokens.astype("<i8").tobytes(),
            one.actions.astype("<i8").tobytes(),
            one.sampled.astype("<f4").tobytes(),
            one.settings.astype("<i8").tobytes(),
        )
        for one in trajectories
    ]


def off_wire(trajectories: Sequence[WireTrajectory]) -> list[Trajectory]:
    """The reverse of `on_wire`."""

    def ints(data: bytes) -> Any:
        return np.frombuffer(data, dtype="<i8").astype(np.int64)

    return [
        Trajectory(
            one.sample_id,
            one.role,
            one.advantage,
            one.lag,
            ints(one.tokens),
            ints(one.actions),
            np.frombuffer(one.sampled, dtype="<f4").astype(np.float32),
            ints(one.settings),
        )
        for one in trajectories
    ]
