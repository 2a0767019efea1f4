"""Layers that share a block pool, and the tensors of theirs that lie in it.

What looks equally far back, in whole blocks, forms a group: one pool of blocks, with one tensor for each
`KVCacheSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

import torch
from torch import Tensor

from cpplm.model.kv_cache.block_pool import BLOCK_SIZE, BlockPool
from cpplm.model.kv_cache.view import KVCacheSpec

SCRATCH = 0  # block where rows of padding go
ZEROS = 1  # block of positions before the start, never written
_RESERVED = 2


def block_lookback(spec: KVCacheSpec) -> int | None:
    """The lookback rounded up to whole blocks; specs with the same one form a group."""
    return None if spec.lookback is None else -(-spec.lookback // BLOCK_SIZE) * BLOCK_SIZE


class KVCacheGroup:
    """Specs with one lookback: their block pool, and a tensor for each."""

    def __init__(self, specs: Iterable[KVCacheSpec], max_cached: int) -> None:
        self.specs = list(specs)
        self.lookback = block_lookback(self.specs[0])
        self.pool = BlockPool(reserved=_RESERVED, max_cached=max_cached)
        self.rows: dict[str, Tensor] = {}

    def grow(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make room for all blocks that the pool has handed out: when it grows, to twice as much at least."""
        for spec in self.specs:
            rows = self.rows.get(spec.name)
            capacity = 0 if rows is None else rows.size(0)
            if capacity < self.pool.size * BLOCK_SIZE:
                more = max(capacity, self.pool.size * BLOCK_SIZE - capacity)
                new = torch.zeros(more, *spec.shape, device=device, dtype=spec.dtype or dtype)
                self.rows[spec.name] = new if rows is None else torch.cat((rows, new))

    def first_needed(self, position: int) -> int:
        """The first position that the token at this one looks back to."""
        return 0 if self.lookback is None else max(0, position - self.lookback)

    def prefix_hit_blocks(self, hashes: list[bytes], count: int) -> int:
        """Count the blocks, at most `count`, of the longest prefix that the cache has, by hash."""
        if self.lookback is None:
            return sum(1 for _ in takewhile(self.pool.__contains__, hashes[:count]))
        while count:
            first = self.first_needed(count * BLOCK_SIZE) // BLOCK_SIZE
            if all(block in self.pool for block in hashes[first:count]):
                break
            count -= 1
        return count
