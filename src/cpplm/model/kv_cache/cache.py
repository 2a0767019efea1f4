"""Paged cache of earlier tokens in decoding, for many sequences of different lengths.

Keys and values of all tokens or of a window, and the last few states of a convolution are kept in blocks
(`block_pool.py`). A sequence gives back the blocks that no layer looks back to any more.

    cache = KVCache(model.cache_specs(), device=model.device, dtype=model.compute_dtype)
    sequence = cache.begin(ids)                      # a known prefix is there already
    view = cache.view([sequence], len(ids) - sequence.length)
    logits = model(torch.tensor([ids[sequence.length :]]), view)
    cache.advance(sequence, ids[sequence.length :])  # only now they count: drafts need not be taken back
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cpplm.model.kernels.decode_attention import supports
from cpplm.model.kv_cache.block_pool import BLOCK_SIZE, BlockTable, CachedSequence, block_hashes
from cpplm.model.kv_cache.group import KVCacheGroup, block_lookback
from cpplm.model.kv_cache.paged_view import CacheReadMode, PagedCacheView
from cpplm.model.kv_cache.view import KVCacheSpec


class KVCache:
    """The blocks of all sequences."""

    def __init__(
        self,
        specs: Iterable[KVCacheSpec],
        *,
        device: torch.device,
        dtype: torch.dtype,
        prefix_cache_tokens: int = 0,
        read_mode: CacheReadMode | None = None,
    ) -> None:
        """Empty; it grows as sequences need it, and never shrinks.

        Args:
            specs: of all layers.
            device: where.
            dtype: of the computation.
            prefix_cache_tokens: tokens of ended sequences to keep, for others with the same prefix.
            read_mode: how the rows of a batch attend; None for what suits the device: "paged" on a CPU that
                has a kernel for it, else "per_row", and "padded" on a GPU.
        """
        self.device, self.dtype = device, dtype
        if read_mode is None:
            on_cpu: CacheReadMode = "paged" if supports(device, dtype) else "per_row"
            read_mode = on_cpu if device.type == "cpu" else "padded"
        self.read_mode = read_mode
        by_lookback: dict[int | None, list[KVCacheSpec]] = {}
        for spec in specs:
            by_lookback.setdefault(block_lookback(spec), []).append(spec)
        self._groups = [
            KVCacheGroup(members, prefix_cache_tokens // BLOCK_SIZE) for members in by_lookback.values()
        ]

    @property
    def num_used_blocks(self) -> int:
        """Blocks that sequences hold, in all pools."""
        return sum(group.pool.num_used for group in self._groups)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that no sequence holds, kept for others with the same prefix."""
        return sum(group.pool.num_cached for group in self._groups)

    @property
    def bytes(self) -> int:
        """Memory taken."""
        return sum(rows.nbytes for group in self._groups for rows in group.rows.values())

    # ---- sequences ------------------------------------------------------------------------------------

    def begin(self, ids: Sequence[int] = ()) -> CachedSequence:
        """A sequence that is to hold `ids`; its longest cached prefix is there, but never all of it."""
        hashes = list(block_hashes(ids[:-1]))
        count, before = len(hashes), -1
        while count != before:  # until all groups agree
            before = count
            for group in self._groups:
                count = group.prefix_hit_blocks(hashes, count)
        tables = []
        for group in self._groups:
            first = group.first_needed(count * BLOCK_SIZE) // BLOCK_SIZE
            tables.append(BlockTable(first, [group.pool.reuse(block) for block in hashes[first:count]]))
        return CachedSequence(tables, count * BLOCK_SIZE, hashes[count - 1] if count else b"")

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """A second sequence with the same tokens: full blocks are shared, the last one is copied."""
        tables = []
        for group, table in zip(self._groups, sequence.tables, strict=True):
            full = sequence.length // BLOCK_SIZE - table.first
            blocks = table.blocks[:full]
            for block in blocks:
                group.pool.add_user(block)
            if sequence.tail:
                blocks.append(group.pool.allocate())
                group.grow(self.device, self.dtype)
                for rows in group.rows.values():
                    of_block = rows.unflatten(0, (-1, BLOCK_SIZE))
                    of_block[blocks[-1]] = of_block[table.blocks[full]]
            tables.append(BlockTable(table.first, blocks))
        return CachedSequence(tables, sequence.length, sequence.last_hash, sequence.tail.copy())

    def release(self, sequence: CachedSequence) -> None:
        """Give back all blocks of a sequence, the last first, so that prefixes stay cached longest."""
        for group, table in zip(self._groups, sequence.tables, strict=True):
            for block in reversed(table.blocks):
                group.pool.release(block)
            table.blocks.clear()

    def advance(self, sequence: CachedSequence, ids: Sequence[int]) -> None:
        """Count `ids`, the first of the new tokens of the last view, as read."""
        first = sequence.length // BLOCK_SIZE
        sequence.tail += ids
        sequence.length += len(ids)
        hashes = list(block_hashes(sequence.tail, sequence.last_hash))
        if not hashes:
            return
        sequence.last_hash = hashes[-1]
        del sequence.tail[: len(hashes) * BLOCK_SIZE]
        for group, table in zip(self._groups, sequence.tables, strict=True):
            for number, block_hash in enumerate(hashes, first):
                group.pool.register(table.blocks[number - table.first], block_hash)
            while table.first < group.first_needed(sequence.length) // BLOCK_SIZE:
                group.pool.release(table.blocks.pop(0))
                table.first += 1

    # ---- one forward pass -----------------------------------------------------------------------------

    def view(
        self,
        sequences: Sequence[CachedSequence],
        counts: int | Sequence[int],
        starts: Sequence[int] | None = None,
    ) -> PagedCacheView:
        """The cache as the model reads and writes it while it takes in the next tokens of some sequences.

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
                missing = -(-(start + count) // BLOCK_SIZE) - table.first - len(table.blocks)
                table.blocks += [group.pool.allocate() for _ in range(missing)]
            group.grow(self.device, self.dtype)
        return PagedCacheView(self._groups, sequences, starts, counts, self.device, read_mode=self.read_mode)
