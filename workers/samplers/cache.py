"""A key-value cache whose rows have lengths of their own.

Row i holds position p at column p, so no row is padded on the left and none leaves holes: a forward pass writes at each row's own
positions and attends to the columns up to them. It stands where transformers expects a Cache: attention layers call `update`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

CLEARED_AT_ONCE = 64  # columns


class RaggedCache:
    """Keys and values of every layer: [layers, 2, rows, kv_heads, columns, head_size].

    `values` may come uninitialised: columns are cleared as they come into use, so that memory is touched only where it is read.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._cleared = 0
        self._rows: Tensor | None = None
        self._positions: Tensor | None = None
        self._length = 0

    @property
    def columns(self) -> int:
        """Positions that a row can hold."""
        return int(self.values.shape[4])

    def begin(self, positions: Tensor) -> Tensor:
        """Prepares a forward pass over the first rows at positions [rows, new]; gives its attention mask.

        The mask is additive, float [rows, 1, new, used]: 0 at columns up to the token's position, the lowest number after it.
        """
        import torch

        self._positions = positions
        self._rows = torch.arange(positions.shape[0], device=positions.device).unsqueeze(-1)
        self._length = int(positions.max()) + 1
        self.clear_to(self._length)
        seen = torch.arange(self._length, device=positions.device) <= positions.unsqueeze(-1)
        mask = torch.zeros(seen.shape, dtype=self.values.dtype, device=positions.device)
        return mask.masked_fill_(~seen, torch.finfo(self.values.dtype).min).unsqueeze(1)

    def clear_to(self, length: int) -> None:
        """Zeroes columns that were never used, up to `length`: a masked column is still multiplied, and must be a number."""
        if length > self._cleared:
            end = min(self.columns, max(length, self._cleared + CLEARED_AT_ONCE))
            self.values[:, :, :, :, self._cleared : end] = 0
            self._cleared = end

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes [rows, kv_heads, new, head_size] at the positions of `begin`; all keys and values of those rows."""
        both = self.values[layer_idx]
        count = keys.shape[0]
        both[0][self._rows, :, self._positions] = keys.transpose(1, 2)
        both[1][self._rows, :, self._positions] = values.transpose(1, 2)
        return both[0][:count, :, : self._length], both[1][:count, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in use; some models ask before they are told positions."""
        return self._length

    def swap(self, left: Tensor, right: Tensor, length: int) -> None:
        """Exchanges rows `left` [n] with rows `right` [n], their first `length` columns."""
        used = self.values[:, :, :, :, :length]
        kept = used[:, :, left]
        used[:, :, left] = used[:, :, right]
        used[:, :, right] = kept

    def copy_rows(self, source: RaggedCache, source_rows: Tensor, rows: Tensor, length: int) -> None:
        """Fills `rows` [n] with rows `source_rows` [n] of another cache, their first `length` columns."""
        self.clear_to(length)
        self.values[:, :, rows, :, :length] = source.values[:, :, source_rows, :, :length]
