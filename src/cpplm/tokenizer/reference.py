"""Byte-pair encoding as it is defined, in plain Python: for bytes that are not UTF-8, and to compare with.

A piece that is a token is that token. Any other is taken apart into its bytes, and of all neighbours that
together are a token the pair of the lowest id is joined, the leftmost first, until there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import lru_cache

from cpplm.tokenizer.pretokenizer import split_bytes

_CACHED_PIECES = 65_536


class ReferenceEncoder:
    """Encodes bytes with a vocabulary, slowly."""

    def __init__(self, pattern: str, ids: Mapping[bytes, int]) -> None:
        """Take the pre-tokenizing expression and the id of every token, all single bytes among them."""
        self._pattern, self._ids = pattern, ids
        self._encode_piece = lru_cache(_CACHED_PIECES)(self._merge)

    def encode(self, data: bytes) -> list[int]:
        """Ids of any bytes."""
        return [id_ for piece in split_bytes(self._pattern, data) for id_ in self._encode_piece(piece)]

    def _merge(self, piece: bytes) -> list[int]:
        """Join by a queue of pairs, so that the time for a long piece is n log n."""
        ids = self._ids
        if piece in ids:
            return [ids[piece]]
        stop = list(range(1, len(piece) + 1))  # where the part that begins at each position ends
        before = list(range(-1, len(piece) - 1))  # where the part before it begins
        queue: list[tuple[int, int, int]] = []

        def push(first: int) -> None:
            middle = stop[first]
            if middle < len(piece):
                joined = ids.get(piece[first : stop[middle]])
                if joined is not None:
                    heapq.heappush(queue, (joined, first, stop[middle]))

        alive = [True] * len(piece)
        for position in range(len(piece) - 1):
            push(position)
        while queue:
            _, first, end = heapq.heappop(queue)
            middle = stop[first]
            if not alive[first] or middle == len(piece) or stop[middle] != end:
                continue  # one of the two has been joined with another part
            alive[middle] = False
            stop[first] = end
            if end < len(piece):
                before[end] = first
                push(first)
            if before[first] >= 0:
                push(before[first])
        return [ids[piece[first : stop[first]]] for first in range(len(piece)) if alive[first]]
