"""Allocation of cache blocks to sequences, with shared prefixes: numbers alone, no tensors.

Tokens are cached in blocks of `BLOCK_SIZE`. A pool hands out blocks by number, counts how many sequences use
each, and takes them back. A full block is known by the hash of all tokens up to its end. Sequences that begin
with the same tokens share it (as in vLLM, Kwon et al. 2023, arXiv 2309.06180, section 4.4); when no sequence
uses it any more it stays cached for later ones, up to a bound, and the least recently used is evicted first.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 16
"""Tokens of a block."""


def block_hashes(ids: Sequence[int], parent: bytes = b"") -> Iterator[bytes]:
    """Yield the hashes of the full blocks of `ids`, which follow the block with the hash `parent`."""
    for start in range(0, len(ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        tokens = np.array(ids[start : start + BLOCK_SIZE], dtype="<i8").tobytes()
        parent = hashlib.blake2b(parent + tokens, digest_size=16).digest()
        yield parent


class BlockPool:
    """Blocks of one group of layers, by number."""

    def __init__(self, *, reserved: int = 0, max_cached: int = 0) -> None:
        """Empty.

        Args:
            reserved: so many numbers, from 0, are never handed out.
            max_cached: full blocks kept when no sequence uses them.
        """
        self.size = reserved
        """All numbers handed out so far are below it; it never falls."""
        self._max_cached = max_cached
        self._free: list[int] = []  # a heap: the lowest first, so that blocks of a sequence stay together
        self._ref_counts: dict[int, int] = {}
        self._unused: dict[int, None] = {}  # cached, the least recently used first
        self._by_hash: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return len(self._ref_counts)

    @property
    def num_cached(self) -> int:
        """Blocks that no sequence holds, but whose tokens are known."""
        return len(self._unused)

    def allocate(self) -> int:
        """A block for one sequence, with anything in it."""
        if self._free:
            block = heapq.heappop(self._free)
        else:
            block = self.size
            self.size += 1
        self._ref_counts[block] = 1
        return block

    def add_user(self, block: int) -> None:
        """Count one more sequence that uses a block, which is in use or cached."""
        self._unused.pop(block, None)
        self._ref_counts[block] = self._ref_counts.get(block, 0) + 1

    def __contains__(self, block_hash: bytes) -> bool:
        """True if some block holds the tokens of this hash."""
        return block_hash in self._by_hash

    def reuse(self, block_hash: bytes) -> int:
        """The block that holds the tokens of this hash, for one more sequence."""
        block = self._by_hash[block_hash]
        self.add_user(block)
        return block

    def release(self, block: int) -> None:
        """Count one sequence less that uses the block; the last one frees it, or leaves it cached."""
        self._ref_counts[block] -= 1
        if self._ref_counts[block]:
            return
        del self._ref_counts[block]
        if block not in self._hashes:
            heapq.heappush(self._free, block)
            return
        self._unused[block] = None
        if len(self._unused) > self._max_cached:
            oldest = next(iter(self._unused))
            del self._unused[oldest], self._by_hash[self._hashes.pop(oldest)]
            heapq.heappush(self._free, oldest)

    def register(self, block: int, block_hash: bytes) -> None:
        """Make a block in use known by the hash of its tokens, unless another one has it already."""
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = block
            self._hashes[block] = block_hash


@dataclass
class BlockTable:
    """The blocks of one sequence in one pool, in order, without those at its start that were given back."""

    first: int = 0
    """Number of blocks that were given back."""
    blocks: list[int] = field(default_factory=list)

    def slots(self, start: int, end: int) -> NDArray[np.int64]:
        """Places in the pool of the tokens from position `start` to `end` (exclusive)."""
        low, high = start // BLOCK_SIZE - self.first, -(-end // BLOCK_SIZE) - self.first
        firsts = np.array(self.blocks[low:high]) * BLOCK_SIZE
        slots: NDArray[np.int64] = (firsts[:, None] + np.arange(BLOCK_SIZE)).reshape(-1)
        return slots[start % BLOCK_SIZE :][: end - start]


@dataclass
class CachedSequence:
    """The tokens of one sequence that the cache holds."""

    tables: list[BlockTable]
    """One per group."""
    length: int = 0
    """Tokens read."""
    last_hash: bytes = b""
    """Hash of its last full block."""
    tail: list[int] = field(default_factory=list)
    """The tokens behind that block."""
