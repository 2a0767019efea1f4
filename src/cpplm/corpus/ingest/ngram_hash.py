"""Text to words to hashed runs of words: what duplicates and contamination are recognised by.

A word is a run of letters, digits, `_` and bytes outside ASCII; punctuation and white space only separate, so
that formatting changes nothing. Of 10^9 runs in a corpus one is expected to clash with any of 10^5 wanted
ones in every 200,000th corpus.
"""

from __future__ import annotations

import functools
import hashlib
import re

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_WORD = re.compile(rb"[\w\x80-\xff]+")
_STEP = np.uint64(0xD6E8FEB86659FD93)


def split_words(text: bytes) -> list[bytes]:
    """The words of a text."""
    return _WORD.findall(text)


@functools.lru_cache(maxsize=262_144)
def _hash_word(word: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")


def hash_words(words: list[bytes]) -> Hashes:
    """A hash for each word."""
    return np.fromiter(map(_hash_word, words), dtype=np.uint64, count=len(words))


def ngram_hashes(hashes: Hashes, length: int) -> Hashes:
    """A hash of every `length` successive words; empty when there are fewer."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    sums = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        sums = sums * _STEP + hashes[place : place + count]
    return _mix(sums)


def _mix(values: Hashes) -> Hashes:
    """Spread every bit over the whole word (the finisher of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
