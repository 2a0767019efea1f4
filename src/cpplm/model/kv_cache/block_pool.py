"""Which blocks of the cache hold which part of which sequence: counting alone, no tensors.

What layers remember lies in blocks of `BLOCK` tokens. A pool hands out blocks by number, counts how many
sequences use each, and takes them back. A full block has a name: the hash of all tokens up to its end. Who
begins with the same tokens shares it (as in vLLM, Kwon et al. 2023, arXiv 2309.06180, section 4.4); when
nobody uses it any more it is kept for later ones, up to a bound, the longest unused forgotten first.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BLOCK = 16
"""Tokens of a block."""


def block_names(ids: Sequence[int], before: bytes = b"") -> Iterator[bytes]:
    """The names of the full blocks of `ids`, which follow the block named `before`."""
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        tokens = np.array(ids[start : start + BLOCK], dtype="<i8").tobytes()
        before = hashlib.blake2b(before + tokens, digest_size=16).digest()
        yield before


class BlockPool:
    """Blocks of one group of layers, by number."""

    def __init__(self, *, reserved: int = 0, most_kept: int = 0) -> None:
        """Empty.

        Args:
            reserved: so many numbers, from 0, are never handed out.
            most_kept: named blocks kept when nobody uses them.
        """
        self.size = reserved
        """All numbers handed out so far are below it; it never falls."""
        self._most_kept = most_kept
        self._free: list[int] = []  # a heap: the lowest first, so that blocks of a sequence stay together
        self._users: dict[int, int] = {}
        self._kept: dict[int, None] = {}  # the longest unused first
        self._by_name: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Blocks that nobody holds, but whose text is known."""
        return len(self._kept)

    def take(self) -> int:
        """A block for one sequence, with anything in it."""
        if self._free:
            block = heapq.heappop(self._free)
        else:
            block = self.size
            self.size += 1
        self._users[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more sequence uses a block that is used or kept."""
        self._kept.pop(block, None)
        self._users[block] = self._users.get(block, 0) + 1

    def has(self, name: bytes) -> bool:
        """Whether some block holds this text."""
        return name in self._by_name

    def reuse(self, name: bytes) -> int:
        """The block that holds this text, for one more sequence."""
        block = self._by_name[name]
        self.share(block)
        return block

    def release(self, block: int) -> None:
        """One sequence less uses it."""
        self._users[block] -= 1
        if self._users[block]:
            return
        del self._users[block]
        if block not in self._names:
            heapq.heappush(self._free, block)
            return
        self._kept[block] = None
        if len(self._kept) > self._most_kept:
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._by_name[self._names.pop(oldest)]
            heapq.heappush(self._free, oldest)

    def name(self, block: int, name: bytes) -> None:
        """A block in use holds this text; where another one has it already, that one stays the known one."""
        if name not in self._by_name:
            self._by_name[name] = block
            self._names[block] = name


@dataclass
class BlockTable:
    """The blocks of one sequence in one pool, in order, without those in front that nobody needs any more."""

    first: int = 0
    """How many blocks in front are gone."""
    blocks: list[int] = field(default_factory=list)

    def slots(self, start: int, end: int) -> NDArray[np.int64]:
        """Where in the pool the tokens from position `start` to `end` (exclusive) lie."""
        low, high = start // BLOCK - self.first, -(-end // BLOCK) - self.first
        firsts = np.array(self.blocks[low:high]) * BLOCK
        slots: NDArray[np.int64] = (firsts[:, None] + np.arange(BLOCK)).reshape(-1)
        return slots[start % BLOCK :][: end - start]


@dataclass
class CachedSequence:
    """The tokens of one sequence that the cache holds."""

    tables: list[BlockTable]
    """One per group."""
    length: int = 0
    """Tokens read."""
    name: bytes = b""
    """Of its last full block."""
    tail: list[int] = field(default_factory=list)
    """The tokens behind it."""
