"""The view of a paged cache in one forward pass: where new rows go, where earlier ones are.

Shapes: B sequences, T new tokens, S tokens that they look back to (new ones included), H query heads, D head
width, X whatever a layer caches per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpplm.model.kernels.decode_attention import MAX_TOKENS, PagedSequences, decode_attention
from cpplm.model.kv_cache.block_pool import BLOCK_SIZE, CachedSequence
from cpplm.model.kv_cache.group import SCRATCH, ZEROS, KVCacheGroup
from cpplm.model.kv_cache.view import AttendInPlace, CacheBatch, CacheView

CacheReadMode = Literal["paged", "padded", "per_row"]
"""Ways in which the rows of a batch attend: by one kernel that reads the blocks in place; over a copy of all
rows' keys together, the shorter ones padded; each over a copy of its own."""


class PagedCacheView(CacheView):
    """A `KVCache` during one forward pass over some of its sequences."""

    def __init__(
        self,
        groups: Sequence[KVCacheGroup],
        sequences: Sequence[CachedSequence],
        starts: Sequence[int],
        counts: Sequence[int],
        device: torch.device,
        *,
        read_mode: CacheReadMode,
    ) -> None:
        """Arguments are those of `KVCache.view`, with a start and a count for each sequence."""
        self._groups, self._device = groups, device
        self._group_of = {spec.name: index for index, group in enumerate(groups) for spec in group.specs}
        self._tables = [[sequence.tables[index] for sequence in sequences] for index in range(len(groups))]
        self._starts, self._counts, self._width = starts, counts, max(counts)
        self._read_mode = read_mode
        self.positions_BT = self._tensor(np.array(starts)[:, None] + np.arange(self._width)).float()
        self._new: dict[int, tuple[NDArray[np.int64], Tensor]] = {}
        self._before: dict[tuple[int, int], Tensor] = {}
        self._batches: dict[int, list[CacheBatch]] = {}
        self._paged: dict[int, PagedSequences] = {}

    @property
    def max_context(self) -> int:
        """Tokens before the new ones, of the longest sequence."""
        return max(self._starts)

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _new_slots(self, group: int) -> tuple[NDArray[np.int64], Tensor]:
        """Slots of the new tokens' rows, shape BT, and the same as an index of shape B * T."""
        if group in self._new:
            return self._new[group]
        slots = np.full((len(self._starts), self._width), SCRATCH * BLOCK_SIZE)
        for row, table, start, count in zip(
            slots, self._tables[group], self._starts, self._counts, strict=True
        ):
            row[:count] = table.slots(start, start + count)
        self._new[group] = slots, self._tensor(slots.reshape(-1))
        return self._new[group]

    def new_slots(self, name: str) -> Tensor:
        """Slots of the new tokens' rows, shape B * T, int64."""
        return self._new_slots(self._group_of[name])[1]

    def write(self, name: str, rows_BTX: Tensor) -> None:
        """Store a layer's rows of the new tokens."""
        self.slots(name).index_copy_(0, self.new_slots(name), rows_BTX.flatten(0, 1))

    def with_history(self, name: str, rows_BTX: Tensor, count: int) -> Tensor:
        """The new rows, stored, behind the `count` rows before them, which are zero before the start."""
        self.write(name, rows_BTX)
        if count == 0:
            return rows_BTX
        group = self._group_of[name]
        if (group, count) not in self._before:
            self._before[group, count] = self._slots_before(group, count)
        before = self.slots(name).index_select(0, self._before[group, count])
        return torch.cat((before.unflatten(0, (-1, count)), rows_BTX), dim=1)

    def _slots_before(self, group: int, count: int) -> Tensor:
        slots = np.full((len(self._starts), count), ZEROS * BLOCK_SIZE)
        for row, table, start in zip(slots, self._tables[group], self._starts, strict=True):
            if there := min(count, start):
                row[count - there :] = table.slots(start - there, start)
        return self._tensor(slots.reshape(-1))

    @property
    def attend_in_place(self) -> AttendInPlace | None:
        """`attend_paged` for few tokens, where the cache is read so."""
        return self.attend_paged if self._read_mode == "paged" and self._width <= MAX_TOKENS else None

    def attend_paged(self, query_BTHD: Tensor, keys: str, values: str, window: int | None) -> Tensor:
        """`decode_attention` of the new tokens over the keys and values of these names, shape BTHD."""
        group = self._group_of[keys]
        if group not in self._paged:
            tables = self._tables[group]
            numbers = np.zeros((len(tables), max(len(table.blocks) for table in tables)), dtype=np.int64)
            for row, table in zip(numbers, tables, strict=True):
                row[: len(table.blocks)] = table.blocks
            spans = zip(self._starts, self._counts, (table.first for table in tables), strict=True)
            self._paged[group] = PagedSequences(numbers, np.array(list(spans)), BLOCK_SIZE)
        return decode_attention(
            query_BTHD, self.slots(keys), self.slots(values), self._paged[group], window=window
        )

    def slots(self, name: str) -> Tensor:
        """The pool's rows of this name, of all sequences, shape (slots, X)."""
        return self._groups[self._group_of[name]].rows[name]

    def batches(self, name: str) -> list[CacheBatch]:
        """All rows together, or each alone."""
        group = self._group_of[name]
        if group not in self._batches:
            padded = self._read_mode == "padded" and len(self._starts) > 1
            self._batches[group] = [self._padded_batch(group)] if padded else self._batch_per_row(group)
        return self._batches[group]

    def _read(self, slots_BS: Tensor, name: str) -> Tensor:
        return self.slots(name).index_select(0, slots_BS.flatten()).unflatten(0, slots_BS.shape)

    def _batch_per_row(self, group: int) -> list[CacheBatch]:
        """Row by row, without padding."""
        batches = []
        for row, (table, start, count) in enumerate(
            zip(self._tables[group], self._starts, self._counts, strict=True)
        ):
            first, end = self._groups[group].first_needed(start), start + count
            slots_1S = self._tensor(table.slots(first, end)[None])
            batches.append(CacheBatch(slice(row, row + 1), count, partial(self._read, slots_1S)))
        return batches

    def _padded_batch(self, group: int) -> CacheBatch:
        """All rows in one batch, padded in front."""
        firsts = [self._groups[group].first_needed(start) for start in self._starts]
        length = max(start - first for start, first in zip(self._starts, firsts, strict=True)) + self._width
        slots = np.full((len(firsts), length), ZEROS * BLOCK_SIZE)
        documents = np.full((len(firsts), length), -1)
        for row, (table, start, first) in enumerate(
            zip(self._tables[group], self._starts, firsts, strict=True)
        ):
            begin = length - self._width - (start - first)
            documents[row, begin:] = 0
            slots[row, begin : length - self._width] = table.slots(first, start)
            slots[row, length - self._width :] = self._new_slots(group)[0][row]
        padded = bool((documents < 0).any())
        documents_BS = self._tensor(documents) if padded else None
        return CacheBatch(slice(None), self._width, partial(self._read, self._tensor(slots)), documents_BS)
