"""What decoding one token at a time remembers of the tokens before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.model.config import ModelConfig


class KVCache:
    """Preallocated keys and values of all layers; every row of the batch is at the same position.

    Shape of each of the two buffers: (num_layers, B, num_kv_heads, capacity, head_dim). What else layers
    remember is kept by name: all rows so far (`append_rows`), or the last few (`recent`).
    """

    def __init__(
        self, config: ModelConfig, batch_size: int, capacity: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_layers, batch_size, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0
        self._rows: dict[str, Tensor] = {}
        self._recent: dict[str, Tensor] = {}

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.keys.size(3)

    def _end(self, new: int) -> int:
        end = self.length + new
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, {end} were appended")
        return end

    def append(self, layer: int, key_BGTD: Tensor, value_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Store the newest T tokens of one layer; returns that layer's keys and values so far (views).

        The position moves on only with `advance`, once every layer has appended.
        """
        end = self._end(key_BGTD.size(2))
        self.keys[layer, :, :, self.length : end] = key_BGTD
        self.values[layer, :, :, self.length : end] = value_BGTD
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def append_rows(self, name: str, rows_BTX: Tensor) -> Tensor:
        """Store the newest T rows under a name; returns all rows so far, shape BSX (a view)."""
        end = self._end(rows_BTX.size(1))
        if name not in self._rows:
            batch, _, width = rows_BTX.shape
            self._rows[name] = rows_BTX.new_zeros(batch, self.capacity, width)
        self._rows[name][:, self.length : end] = rows_BTX
        return self._rows[name][:, :end]

    def recent(self, name: str, rows_BTX: Tensor, count: int) -> Tensor:
        """The newest rows behind the `count` rows before them, which are zero before the start."""
        before = self._recent.get(name)
        rows = before_start(rows_BTX, count) if before is None else torch.cat((before, rows_BTX), dim=1)
        self._recent[name] = rows[:, rows.size(1) - count :].clone()
        return rows

    def advance(self, num_tokens: int) -> None:
        """Move the position behind the tokens just appended."""
        self.length += num_tokens

    def expand(self, batch_size: int) -> KVCache:
        """A copy for `batch_size` continuations of the one row held here."""

        def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: rows.expand(batch_size, *rows.shape[1:]).clone() for name, rows in tensors.items()}

        copy = object.__new__(KVCache)
        copy.keys = self.keys.expand(-1, batch_size, -1, -1, -1).clone()
        copy.values = self.values.expand(-1, batch_size, -1, -1, -1).clone()
        copy.length = self.length
        copy._rows = copies(self._rows)
        copy._recent = copies(self._recent)
        return copy


def before_start(rows_BTX: Tensor, count: int) -> Tensor:
    """The rows behind `count` rows of zeros."""
    return F.pad(rows_BTX, (0, 0, count, 0))


def with_recent(cache: KVCache | None, name: str, rows_BTX: Tensor, count: int) -> Tensor:
    """The rows behind the `count` rows before them, shape (B, count + T, X), in training and in decoding."""
    return before_start(rows_BTX, count) if cache is None else cache.recent(name, rows_BTX, count)
