"""The ranks that train one model together: means of gradients, and tensors split along their first dimension.

A tensor of n rows is dealt in order, ceil(n / ranks) rows to each while there are any. Parts are padded to
one size, as gloo requires, and travel by the list forms of the collectives: gloo and NCCL both have them, and
torch 2.13 deprecates the single-tensor forms in favour of names that older versions lack.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """A process group; with None, this process alone, which gets back what it passes."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._group = process_group
        self.count = 1 if process_group is None else dist.get_world_size(process_group)
        self.index = 0 if process_group is None else dist.get_rank(process_group)

    def share(self, rows: int) -> slice:
        """Which of `rows` are this rank's; none on the last ranks when there are too few."""
        size = self._part_size(rows)
        return slice(min(rows, self.index * size), min(rows, (self.index + 1) * size))

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over the ranks, in place. All ranks must call it."""
        return self.sum(tensor).div_(self.count) if self.count > 1 else tensor

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place. All ranks must call it."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def mean_share(self, tensor: Tensor) -> Tensor:
        """This rank's rows of the mean over the ranks. All ranks must call it."""
        if self.count == 1:
            return tensor
        size = self._part_size(len(tensor))
        parts = list(_padded(tensor, size * self.count).chunk(self.count))
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=self._group)
        own = self.share(len(tensor))
        return mine[: own.stop - own.start].div_(self.count)

    def gather(self, part: Tensor, rows: int) -> Tensor:
        """All `rows` in order, from each rank's `share` of them. All ranks must call it."""
        if self.count == 1:
            return part
        size = self._part_size(rows)
        whole = part.new_empty((size * self.count, *part.shape[1:]))
        dist.all_gather(list(whole.chunk(self.count)), _padded(part, size), group=self._group)
        return whole[:rows]

    def _part_size(self, rows: int) -> int:
        return -(-rows // self.count)


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """With zeros up to `rows` rows, contiguous."""
    missing = rows - len(tensor)
    if missing == 0:
        return tensor.contiguous()
    return torch.cat((tensor, tensor.new_zeros((missing, *tensor.shape[1:]))))
