"""Uniform numbers for drawing tokens: one for each (seed, position), by a counter and never from a shared stream.

So a request's tokens depend on its seed alone, whichever rows stand beside it and in whatever order they are drawn. The mixer
is splitmix64 (Steele, Lea, Flood 2014), here on tensors: int64 arithmetic wraps, and logical shifts are masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_A = 0xBF58476D1CE4E5B9 - 2**64
_MIX_B = 0x94D049BB133111EB - 2**64


def uniforms(seeds: Tensor, indices: Tensor) -> Tensor:
    """Numbers in [0, 1), float64 [rows], from int64 seeds [rows] and token indices [rows]."""
    # Mixing the seed first keeps seeds that lie a multiple of the counter's step apart from sharing a stream.
    return _mix(_mix(seeds) + (indices + 1) * _GAMMA).bitwise_and(2**53 - 1).double() * 2.0**-53


def _mix(values: Tensor) -> Tensor:
    mixed = (values ^ _shift(values, 30)) * _MIX_A
    mixed = (mixed ^ _shift(mixed, 27)) * _MIX_B
    return mixed ^ _shift(mixed, 31)


def _shift(values: Tensor, bits: int) -> Tensor:
    """Logical shift to the right of int64."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
