"""Text to words to hashed runs of words, in numpy: what duplicates and contamination are recognised by.

A word is a run of letters, digits, `_` and bytes outside ASCII; punctuation and white space only separate, so
that formatting changes nothing. Hashes are polynomials modulo 2^64, then mixed: the same on every machine.
Of 10^9 runs in a corpus one is expected to clash with any of 10^5 wanted ones in every 200,000th corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_BLOCK = 1 << 18  # bytes hashed at once: the work arrays stay in the cache
_BASE = 0x9E3779B97F4A7C15  # odd, hence invertible
_INVERSE = pow(_BASE, -1, 1 << 64)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_IS_WORD = np.zeros(256, dtype=np.bool_)
_IS_WORD[[*range(48, 58), *range(65, 91), 95, *range(97, 123), *range(128, 256)]] = True


def _powers(base: int) -> Hashes:
    factors = np.full(_BLOCK + 1, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


_POWERS, _INVERSES = _powers(_BASE), _powers(_INVERSE)


def _mix(values: Hashes) -> Hashes:
    """Spread every bit over the whole word (the finisher of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_BYTE_VALUES = _mix(np.arange(1, 257, dtype=np.uint64) * _STEP)


@dataclass(frozen=True)
class WordHashes:
    """The words of a text: a hash each, and where they start and end."""

    hashes: Hashes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def after(self, position: int) -> WordHashes:
        """Those that start at `position` or later."""
        first = int(np.searchsorted(self.starts, position))
        return WordHashes(self.hashes[first:], self.starts[first:], self.ends[first:])


def hash_words(text: bytes) -> WordHashes:
    """Hash the words of a text; of a word longer than 256 KB, each piece of that length is one."""
    blocks = [_words_of_block(text[start:end], start) for start, end in _blocks(text)]
    if len(blocks) == 1:
        return blocks[0]
    joined = [
        np.concatenate(parts) for parts in zip(*((b.hashes, b.starts, b.ends) for b in blocks), strict=True)
    ]
    return WordHashes(*joined) if joined else _words_of_block(b"", 0)


def _blocks(text: bytes) -> list[tuple[int, int]]:
    """Pieces of at most `_BLOCK` bytes that end behind a line end where there is one."""
    pieces = []
    start = 0
    while start < len(text):
        end = min(start + _BLOCK, len(text))
        if end < len(text):
            end = text.rfind(b"\n", start, end) + 1 or end
        pieces.append((start, end))
        start = end
    return pieces


def _words_of_block(text: bytes, offset: int) -> WordHashes:
    data = np.frombuffer(text, dtype=np.uint8)
    inside = np.zeros(len(data) + 2, dtype=np.int8)
    inside[1:-1] = _IS_WORD[data]
    change = np.diff(inside)
    starts, ends = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    sums = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum(_BYTE_VALUES[data] * _POWERS[: len(data)], out=sums[1:])
    hashes = _mix((sums[ends] - sums[starts]) * _INVERSES[starts])
    return WordHashes(hashes, starts + offset, ends + offset)


def ngram_hashes(hashes: Hashes, length: int) -> Hashes:
    """A hash of every `length` successive words; empty when there are fewer."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    sums = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        sums = sums * _STEP + hashes[place : place + count]
    return _mix(sums)


def combine(rows: Hashes) -> Hashes:
    """A hash for each row of a matrix; equal rows at different places get different ones."""
    sums = np.arange(1, len(rows) + 1, dtype=np.uint64)
    for column in rows.T:
        sums = sums * _STEP + column
    return _mix(sums)
