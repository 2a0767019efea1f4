"""What layers remember of earlier tokens while decoding, for many sequences of different lengths.

Keys and values of all tokens or of a window, the last few states of a convolution: everything lies in blocks
(`blocks.py`). A sequence gives back the blocks that have gone out of reach.

    cache = Cache(model.remembered(), device=model.device, dtype=model.compute_dtype)
    sequence = cache.begin(ids)                      # what is known of these tokens is there already
    view = cache.view([sequence], len(ids) - sequence.length)
    logits = model(torch.tensor([ids[sequence.length :]]), view)
    cache.advance(sequence, ids[sequence.length :])  # only now they count: drafts need not be taken back
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cpplm.model.kernels.decode_attention import can_decode
from cpplm.model.kv_cache.block_pool import BLOCK, BlockTable, CachedSequence, block_names
from cpplm.model.kv_cache.spec import Group, Remembered
from cpplm.model.kv_cache.view import CacheView, Reading


class Cache:
    """The blocks of all sequences."""

    def __init__(
        self,
        remembered: Iterable[Remembered],
        *,
        device: torch.device,
        dtype: torch.dtype,
        kept_tokens: int = 0,
        reading: Reading | None = None,
    ) -> None:
        """Empty; it grows as sequences need it, and never shrinks.

        Args:
            remembered: what layers keep.
            device: where.
            dtype: of the computation.
            kept_tokens: of ended sequences, for others that begin alike.
            reading: how the rows of a batch attend; None for what suits the device: in place on a CPU that
                has a kernel for it, else one by one, and together on a GPU.
        """
        self.device, self.dtype = device, dtype
        if reading is None:
            on_cpu: Reading = "in place" if can_decode(device, dtype) else "each"
            reading = on_cpu if device.type == "cpu" else "together"
        self.reading = reading
        by_reach: dict[int | None, list[Remembered]] = {}
        for each in remembered:
            by_reach.setdefault(each.group, []).append(each)
        self._groups = [Group(members, kept_tokens // BLOCK) for members in by_reach.values()]

    @property
    def used_blocks(self) -> int:
        """Blocks that sequences hold, in all pools."""
        return sum(group.pool.used for group in self._groups)

    @property
    def kept_blocks(self) -> int:
        """Blocks that no sequence holds, kept for what begins alike."""
        return sum(group.pool.kept for group in self._groups)

    @property
    def bytes(self) -> int:
        """Memory taken."""
        return sum(rows.nbytes for group in self._groups for rows in group.rows.values())

    # ---- sequences ------------------------------------------------------------------------------------

    def begin(self, ids: Sequence[int] = ()) -> CachedSequence:
        """A sequence that is to hold `ids`; as many of them as are known are there, never all of them."""
        names = list(block_names(ids[:-1]))
        count, before = len(names), -1
        while count != before:  # until all groups agree
            before = count
            for group in self._groups:
                count = group.known(names, count)
        tables = []
        for group in self._groups:
            first = group.first_in_reach(count * BLOCK) // BLOCK
            tables.append(BlockTable(first, [group.pool.reuse(name) for name in names[first:count]]))
        return CachedSequence(tables, count * BLOCK, names[count - 1] if count else b"")

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """A second sequence with the same tokens: full blocks are shared, the last one is copied."""
        tables = []
        for group, table in zip(self._groups, sequence.tables, strict=True):
            full = sequence.length // BLOCK - table.first
            blocks = table.blocks[:full]
            for block in blocks:
                group.pool.share(block)
            if sequence.tail:
                blocks.append(group.pool.take())
                group.fit(self.device, self.dtype)
                for rows in group.rows.values():
                    of_block = rows.unflatten(0, (-1, BLOCK))
                    of_block[blocks[-1]] = of_block[table.blocks[full]]
            tables.append(BlockTable(table.first, blocks))
        return CachedSequence(tables, sequence.length, sequence.name, sequence.tail.copy())

    def release(self, sequence: CachedSequence) -> None:
        """Give back all of its blocks, the last first, so that beginnings are kept longest."""
        for group, table in zip(self._groups, sequence.tables, strict=True):
            for block in reversed(table.blocks):
                group.pool.release(block)
            table.blocks.clear()

    def advance(self, sequence: CachedSequence, ids: Sequence[int]) -> None:
        """Take `ids`, the first of the new tokens of the last view, as read."""
        first = sequence.length // BLOCK
        sequence.tail += ids
        sequence.length += len(ids)
        names = list(block_names(sequence.tail, sequence.name))
        if not names:
            return
        sequence.name = names[-1]
        del sequence.tail[: len(names) * BLOCK]
        for group, table in zip(self._groups, sequence.tables, strict=True):
            for number, name in enumerate(names, first):
                group.pool.name(table.blocks[number - table.first], name)
            while table.first < group.first_in_reach(sequence.length) // BLOCK:
                group.pool.release(table.blocks.pop(0))
                table.first += 1

    # ---- one forward pass -----------------------------------------------------------------------------

    def view(
        self,
        sequences: Sequence[CachedSequence],
        counts: int | Sequence[int],
        starts: Sequence[int] | None = None,
    ) -> CacheView:
        """What the model reads and writes while it takes in the next tokens of some sequences.

        Args:
            sequences: the rows of the batch.
            counts: new tokens of each, 1 at least; shorter rows are padded on the right.
            starts: their first positions, when these are not right behind what was read.
        """
        counts = [counts] * len(sequences) if isinstance(counts, int) else list(counts)
        starts = [sequence.length for sequence in sequences] if starts is None else list(starts)
        for index, group in enumerate(self._groups):
            for sequence, start, count in zip(sequences, starts, counts, strict=True):
                table = sequence.tables[index]
                missing = -(-(start + count) // BLOCK) - table.first - len(table.blocks)
                table.blocks += [group.pool.take() for _ in range(missing)]
            group.fit(self.device, self.dtype)
        return CacheView(self._groups, sequences, starts, counts, self.device, reading=self.reading)
