"""Keys and values of the tokens seen so far, for decoding one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from cpplm.model.config import ModelConfig


class KVCache:
    """Preallocated keys and values of all layers; every row of the batch is at the same position.

    Shape of each of the two buffers: (num_layers, B, num_kv_heads, capacity, head_dim).
    """

    def __init__(
        self, config: ModelConfig, batch_size: int, capacity: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.num_layers, batch_size, config.num_kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.keys.size(3)

    def append(self, layer: int, key_BGTD: Tensor, value_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Store the newest T tokens of one layer; returns that layer's keys and values so far (views).

        The position moves on only with `advance`, once every layer has appended.
        """
        end = self.length + key_BGTD.size(2)
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, {end} were appended")
        self.keys[layer, :, :, self.length : end] = key_BGTD
        self.values[layer, :, :, self.length : end] = value_BGTD
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, num_tokens: int) -> None:
        """Move the position behind the tokens just appended."""
        self.length += num_tokens

    def expand(self, batch_size: int) -> KVCache:
        """A copy for `batch_size` continuations of the one row held here."""
        copy = object.__new__(KVCache)
        copy.keys = self.keys.expand(-1, batch_size, -1, -1, -1).clone()
        copy.values = self.values.expand(-1, batch_size, -1, -1, -1).clone()
        copy.length = self.length
        return copy
