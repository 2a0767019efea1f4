"""The ranks that train one model together: means of gradients, and tensors split along their first dimension.

A tensor of n rows is dealt in order, ceil(n / ranks) rows to each while there are any; FSDP2 divides a
parameter in the same way. Parts are padded to one size, as gloo requires. Gathers and sums travel by the list
forms of the collectives: gloo and NCCL both have them, and torch 2.13 deprecates the single-tensor forms in
favour of names that older versions lack. All-to-all has its single-tensor form, the only one that gloo has in
torch 2.11.

An exchange is begun by one call and ended by calling what it returned, so that the messages travel meanwhile.
All ranks must begin the same exchanges in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Exchange = Callable[[], Tensor]
"""Waits for the messages and gives their result."""


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

    def mean(self, tensor: Tensor) -> Exchange:
        """The mean over the ranks, in place."""
        total = self.sum(tensor)
        return lambda: total().div_(self.count) if self.count > 1 else tensor

    def sum(self, tensor: Tensor) -> Exchange:
        """The sum over the ranks, in place."""
        if self.count == 1:
            return lambda: tensor
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return _after(work, lambda: tensor)

    def mean_share(self, tensor: Tensor) -> Exchange:
        """This rank's rows of the mean over the ranks."""
        if self.count == 1:
            return lambda: tensor
        parts = list(self._padded(tensor).chunk(self.count))
        mine, own = torch.empty_like(parts[0]), self.share(len(tensor))
        work = dist.reduce_scatter(mine, parts, group=self._group, async_op=True)
        return _after(work, lambda: mine[: own.stop - own.start].div_(self.count))

    def gather(self, part: Tensor, rows: int) -> Exchange:
        """All `rows` in order, from each rank's `share` of them."""
        if self.count == 1:
            return lambda: part
        size = self._part_size(rows)
        whole = part.new_empty((size * self.count, *part.shape[1:]))
        parts = list(whole.chunk(self.count))
        work = dist.all_gather(parts, _with_rows(part, size), group=self._group, async_op=True)
        return _after(work, lambda: whole[:rows])

    def gather_any(self, part: Tensor) -> list[Tensor]:
        """What each rank has, in order of rank; rows may differ in number, the rest of the shape may not."""
        counts = self.gather(torch.tensor([len(part)], device=part.device), self.count)().tolist()
        most = max(1, *counts)
        padded = self.gather(_with_rows(part, most), most * self.count)()
        return [rows[:count] for rows, count in zip(padded.split(most), counts, strict=True)]

    def rows_to_matrices(self, parts: Tensor, rows: int) -> Exchange:
        """Every rank has its share of each matrix' rows; afterwards it has its share of the matrices, whole.

        Args:
            parts: shape (matrices, this rank's rows, columns).
            rows: of a whole matrix.

        Returns:
            Shape (this rank's matrices, rows, columns).
        """
        count, _, columns = parts.shape
        size, own = self._part_size(rows), self.share(count)
        sent = self._padded(_with_rows(parts.transpose(0, 1), size).transpose(0, 1)).contiguous()
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)

        def whole() -> Tensor:
            by_sender = received.view(self.count, -1, size, columns)
            matrices = by_sender.transpose(0, 1).reshape(-1, self.count * size, columns)
            return matrices[: own.stop - own.start, :rows]

        return _after(work, whole)

    def matrices_to_rows(self, matrices: Tensor, count: int) -> Exchange:
        """The way back: from each rank's share of `count` matrices to its share of each matrix' rows.

        Args:
            matrices: shape (this rank's matrices, rows, columns).
            count: matrices of all ranks.

        Returns:
            Shape (count, this rank's rows, columns).
        """
        _, rows, columns = matrices.shape
        size, own = self._part_size(rows), self.share(rows)
        padded = _with_rows(matrices, self._part_size(count)).transpose(0, 1)
        by_receiver = _with_rows(padded, size * self.count).transpose(0, 1).unflatten(1, (self.count, size))
        sent = by_receiver.transpose(0, 1).contiguous()
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
        return _after(work, lambda: received.view(-1, size, columns)[:count, : own.stop - own.start])

    def _padded(self, tensor: Tensor) -> Tensor:
        return _with_rows(tensor, self._part_size(len(tensor)) * self.count)

    def _part_size(self, rows: int) -> int:
        return -(-rows // self.count)


def _after(work: dist.Work, result: Exchange) -> Exchange:
    """Wait for `work`, which keeps what it sends, then `result`."""

    def wait() -> Tensor:
        work.wait()
        return result()

    return wait


def _with_rows(tensor: Tensor, rows: int) -> Tensor:
    """With zeros up to `rows` rows, contiguous."""
    missing = rows - len(tensor)
    if missing == 0:
        return tensor.contiguous()
    return torch.cat((tensor, tensor.new_zeros((missing, *tensor.shape[1:]))))
