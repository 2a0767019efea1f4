"""What layers remember per token, and the tensors that hold it.

A layer says what it keeps of each token and how far it looks back. Layers that look equally far back, in
whole blocks, form a group: one pool of blocks, with a tensor for each thing remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from cpplm.model.kv_cache.block_pool import BLOCK, BlockPool

SCRATCH = 0  # block where rows of padding go
ZEROS = 1  # block of what stands before the start, never written
_RESERVED = 2


@dataclass(frozen=True)
class Remembered:
    """What a layer keeps of each token."""

    name: str
    shape: tuple[int, ...]
    """Per token."""
    reach: int | None
    """Earlier tokens that a new one needs; None for all."""
    dtype: torch.dtype | None = None
    """None for that of the computation."""

    @property
    def group(self) -> int | None:
        """Layers of one group hold on to the same blocks: the reach, rounded up to whole ones."""
        return None if self.reach is None else -(-self.reach // BLOCK) * BLOCK


class Group:
    """One pool of blocks, and the tensors over it."""

    def __init__(self, remembered: Iterable[Remembered], most_kept: int) -> None:
        self.remembered = list(remembered)
        self.reach = self.remembered[0].group
        self.pool = BlockPool(reserved=_RESERVED, most_kept=most_kept)
        self.rows: dict[str, Tensor] = {}

    def fit(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make room for all blocks that the pool has handed out: when it grows, to twice as much at least."""
        for each in self.remembered:
            rows = self.rows.get(each.name)
            have = 0 if rows is None else rows.size(0)
            if have < self.pool.size * BLOCK:
                more = max(have, self.pool.size * BLOCK - have)
                new = torch.zeros(more, *each.shape, device=device, dtype=each.dtype or dtype)
                self.rows[each.name] = new if rows is None else torch.cat((rows, new))

    def first_in_reach(self, position: int) -> int:
        """The first position that the token at this one needs."""
        return 0 if self.reach is None else max(0, position - self.reach)

    def known(self, names: list[bytes], count: int) -> int:
        """How many of the first `count` named blocks a sequence can begin behind, at most."""
        if self.reach is None:
            return sum(1 for _ in takewhile(self.pool.has, names[:count]))
        while not all(map(self.pool.has, names[self.first_in_reach(count * BLOCK) // BLOCK : count])):
            count -= 1
        return count
