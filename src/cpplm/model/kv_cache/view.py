"""The cache as the model sees it during one forward pass: where new rows go, where earlier ones are.

Shapes: B sequences, T new tokens, S tokens in reach, X whatever a layer remembers per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cpplm.model.kernels.decode_attention import MOST_TOKENS, Blocks
from cpplm.model.kv_cache.block_pool import BLOCK, CachedSequence
from cpplm.model.kv_cache.spec import SCRATCH, ZEROS, Group

Reading = Literal["in place", "together", "each"]
"""How the rows of a batch attend: by one kernel that reads the blocks in place; over a copy of all rows' keys
together, the shorter ones padded; each over a copy of its own."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch that attend together, and where their keys and values are.

    Rows that share a piece are aligned at their ends; `documents_BS` is -1 in front of the shorter ones, and
    None when all are of one length.
    """

    rows: slice
    queries: int
    """Only the first so many new tokens; the rest is padding."""
    slots_BS: Tensor
    """Of the group's pool."""
    documents_BS: Tensor | None = None


class CacheView:
    """The sequences of one batch while the model reads T new tokens of each."""

    def __init__(
        self,
        groups: Sequence[Group],
        sequences: Sequence[CachedSequence],
        starts: Sequence[int],
        counts: Sequence[int],
        device: torch.device,
        *,
        reading: Reading,
    ) -> None:
        """See `Cache.view`."""
        self._groups, self._device = groups, device
        self._group_of = {each.name: index for index, group in enumerate(groups) for each in group.remembered}
        self._tables = [[sequence.tables[index] for sequence in sequences] for index in range(len(groups))]
        self._starts, self._counts, self._width = starts, counts, max(counts)
        self._reading = reading
        self.positions_BT = self._tensor(np.array(starts)[:, None] + np.arange(self._width)).float()
        """Of the new tokens, counted from each sequence's start; float32."""
        self._new: dict[int, tuple[NDArray[np.int64], Tensor]] = {}
        self._before: dict[tuple[int, int], Tensor] = {}
        self._pieces: dict[int, list[Piece]] = {}
        self._blocks: dict[int, Blocks] = {}

    @property
    def most_before(self) -> int:
        """Tokens before the new ones, of the longest sequence."""
        return max(self._starts)

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _new_slots(self, group: int) -> tuple[NDArray[np.int64], Tensor]:
        """Where the new tokens' rows go, shape BT, and the same as an index of shape B * T."""
        if group in self._new:
            return self._new[group]
        slots = np.full((len(self._starts), self._width), SCRATCH * BLOCK)
        for row, table, start, count in zip(
            slots, self._tables[group], self._starts, self._counts, strict=True
        ):
            row[:count] = table.slots(start, start + count)
        self._new[group] = slots, self._tensor(slots.reshape(-1))
        return self._new[group]

    def new_slots(self, name: str) -> Tensor:
        """Where the new tokens' rows go, shape B * T, int64."""
        return self._new_slots(self._group_of[name])[1]

    def write(self, name: str, rows_BTX: Tensor) -> None:
        """Store what is remembered of the new tokens."""
        self.slots(name).index_copy_(0, self.new_slots(name), rows_BTX.flatten(0, 1))

    def recent(self, name: str, rows_BTX: Tensor, count: int) -> Tensor:
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
        slots = np.full((len(self._starts), count), ZEROS * BLOCK)
        for row, table, start in zip(slots, self._tables[group], self._starts, strict=True):
            if there := min(count, start):
                row[count - there :] = table.slots(start - there, start)
        return self._tensor(slots.reshape(-1))

    def blocks(self, name: str) -> Blocks | None:
        """Where all rows are, for a kernel that reads them in place; None if the batch goes by `pieces`."""
        if self._reading != "in place" or self._width > MOST_TOKENS:
            return None
        group = self._group_of[name]
        if group not in self._blocks:
            tables = self._tables[group]
            numbers = np.zeros((len(tables), max(len(table.blocks) for table in tables)), dtype=np.int64)
            for row, table in zip(numbers, tables, strict=True):
                row[: len(table.blocks)] = table.blocks
            places = zip(self._starts, self._counts, (table.first for table in tables), strict=True)
            self._blocks[group] = Blocks(numbers, np.array(list(places)), BLOCK)
        return self._blocks[group]

    def slots(self, name: str) -> Tensor:
        """All that is remembered of a layer, of all sequences, shape SX."""
        return self._groups[self._group_of[name]].rows[name]

    def pieces(self, name: str) -> list[Piece]:
        """How to go through the batch: all rows, each in one piece."""
        group = self._group_of[name]
        if group not in self._pieces:
            together = self._reading == "together" and len(self._starts) > 1
            self._pieces[group] = [self._all(group)] if together else self._each(group)
        return self._pieces[group]

    def read(self, name: str, piece: Piece) -> Tensor:
        """All that is remembered in reach of a piece's queries, these included, shape BSX."""
        return self.slots(name).index_select(0, piece.slots_BS.flatten()).unflatten(0, piece.slots_BS.shape)

    def _each(self, group: int) -> list[Piece]:
        """Row by row, without padding."""
        pieces = []
        for row, (table, start, count) in enumerate(
            zip(self._tables[group], self._starts, self._counts, strict=True)
        ):
            first, end = self._groups[group].first_in_reach(start), start + count
            slots_1S = self._tensor(table.slots(first, end)[None])
            pieces.append(Piece(slice(row, row + 1), count, slots_1S))
        return pieces

    def _all(self, group: int) -> Piece:
        """All rows in one piece, padded in front."""
        firsts = [self._groups[group].first_in_reach(start) for start in self._starts]
        most = max(start - first for start, first in zip(self._starts, firsts, strict=True)) + self._width
        slots = np.full((len(firsts), most), ZEROS * BLOCK)
        documents = np.full((len(firsts), most), -1)
        for row, (table, start, first) in enumerate(
            zip(self._tables[group], self._starts, firsts, strict=True)
        ):
            begin = most - self._width - (start - first)
            documents[row, begin:] = 0
            slots[row, begin : most - self._width] = table.slots(first, start)
            slots[row, most - self._width :] = self._new_slots(group)[0][row]
        padded = bool((documents < 0).any())
        documents_BS = self._tensor(documents) if padded else None
        return Piece(slice(None), self._width, self._tensor(slots), documents_BS)


def before_start(rows_BTX: Tensor, count: int) -> Tensor:
    """The rows behind `count` rows of zeros."""
    return F.pad(rows_BTX, (0, 0, count, 0))


def with_recent(view: CacheView | None, name: str, rows_BTX: Tensor, count: int) -> Tensor:
    """The rows behind the `count` rows before them, shape (B, count + T, X), in training and in decoding."""
    if view is None or count == 0:
        return before_start(rows_BTX, count)
    return view.recent(name, rows_BTX, count)
