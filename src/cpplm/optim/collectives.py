"""Collective operations on tensors that are split by rows among the ranks that train one model together.

A tensor of n rows is split in order, ceil(n / world_size) rows to each rank while there are any; FSDP2 shards
a parameter in the same way. Shards are padded to one size, as gloo requires. Reduce-scatter and all-gather
use torch's list forms: gloo and NCCL both have them, and torch 2.13 deprecates the single-tensor forms in
favor of names that older versions lack. All-to-all has its single-tensor form, the only one that gloo has in
torch 2.11.

Each operation is launched by the call and ends when the `Handle` that it returns is called, so that messages
travel meanwhile. All ranks must launch the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Handle = Callable[[], Tensor]
"""Waits for an operation and returns its result."""


class Collectives:
    """Operations over a process group; with None, over this process alone, which gets back what it passes."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._group = process_group
        self.world_size = 1 if process_group is None else dist.get_world_size(process_group)
        self.rank = 0 if process_group is None else dist.get_rank(process_group)

    def local_slice(self, rows: int) -> slice:
        """The part of `rows` that is this rank's; empty on the last ranks when there are too few."""
        size = self._shard_size(rows)
        return slice(min(rows, self.rank * size), min(rows, (self.rank + 1) * size))

    def all_reduce(self, tensor: Tensor) -> Handle:
        """The sum over the ranks, in place."""
        if self.world_size == 1:
            return lambda: tensor
        return _after(dist.all_reduce(tensor, group=self._group, async_op=True), lambda: tensor)

    def all_reduce_mean(self, tensor: Tensor) -> Handle:
        """The mean over the ranks, in place."""
        total = self.all_reduce(tensor)
        return lambda: total().div_(self.world_size) if self.world_size > 1 else tensor

    def reduce_scatter_mean(self, tensor: Tensor) -> Handle:
        """This rank's rows of the mean over the ranks."""
        if self.world_size == 1:
            return lambda: tensor
        shards = list(self._padded(tensor).chunk(self.world_size))
        output, own = torch.empty_like(shards[0]), self.local_slice(len(tensor))
        work = dist.reduce_scatter(output, shards, group=self._group, async_op=True)
        return _after(work, lambda: output[: own.stop - own.start].div_(self.world_size))

    def all_gather(self, shard: Tensor, rows: int) -> Handle:
        """All `rows` in order, from each rank's `local_slice` of them."""
        if self.world_size == 1:
            return lambda: shard
        size = self._shard_size(rows)
        full = shard.new_empty((size * self.world_size, *shard.shape[1:]))
        outputs = list(full.chunk(self.world_size))
        work = dist.all_gather(outputs, _with_rows(shard, size), group=self._group, async_op=True)
        return _after(work, lambda: full[:rows])

    def all_gather_ragged(self, shard: Tensor) -> list[Tensor]:
        """The tensors of all ranks, in order; they may differ in rows, not in the rest of their shapes."""
        length = torch.tensor([len(shard)], device=shard.device)
        lengths = self.all_gather(length, self.world_size)().tolist()
        longest = max(1, *lengths)
        padded = self.all_gather(_with_rows(shard, longest), longest * self.world_size)()
        return [rows[:count] for rows, count in zip(padded.split(longest), lengths, strict=True)]

    def all_to_all_to_matrices(self, shards: Tensor, rows: int) -> Handle:
        """Exchange this rank's rows of all matrices for all rows of its `local_slice` of the matrices.

        Args:
            shards: shape (matrices, this rank's rows, columns).
            rows: of a full matrix.

        Returns:
            Shape (this rank's matrices, rows, columns).
        """
        count, _, columns = shards.shape
        size, own = self._shard_size(rows), self.local_slice(count)
        sent = self._padded(_with_rows(shards.transpose(0, 1), size).transpose(0, 1)).contiguous()
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)

        def matrices() -> Tensor:
            by_sender = received.view(self.world_size, -1, size, columns)
            full = by_sender.transpose(0, 1).reshape(-1, self.world_size * size, columns)
            return full[: own.stop - own.start, :rows]

        return _after(work, matrices)

    def all_to_all_to_rows(self, matrices: Tensor, count: int) -> Handle:
        """Exchange this rank's `local_slice` of `count` matrices for its rows of all of them.

        Args:
            matrices: shape (this rank's matrices, rows, columns).
            count: matrices of all ranks.

        Returns:
            Shape (count, this rank's rows, columns).
        """
        _, rows, columns = matrices.shape
        size, own = self._shard_size(rows), self.local_slice(rows)
        padded = _with_rows(matrices, self._shard_size(count)).transpose(0, 1)
        by_receiver = _with_rows(padded, size * self.world_size).transpose(0, 1)
        sent = by_receiver.unflatten(1, (self.world_size, size)).transpose(0, 1).contiguous()
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
        return _after(work, lambda: received.view(-1, size, columns)[:count, : own.stop - own.start])

    def _padded(self, tensor: Tensor) -> Tensor:
        return _with_rows(tensor, self._shard_size(len(tensor)) * self.world_size)

    def _shard_size(self, rows: int) -> int:
        return -(-rows // self.world_size)


def _after(work: dist.Work, result: Handle) -> Handle:
    """Wait for `work`, which keeps what it sends, then return `result`."""

    def wait() -> Tensor:
        work.wait()
        return result()

    return wait


def _with_rows(tensor: Tensor, rows: int) -> Tensor:
    """The tensor padded with zeros to `rows` rows, contiguous."""
    missing = rows - len(tensor)
    if missing == 0:
        return tensor.contiguous()
    return torch.cat((tensor, tensor.new_zeros((missing, *tensor.shape[1:]))))
