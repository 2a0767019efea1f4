"""Byte-pair merges learned from counted words, on whole arrays.

The algorithm is that of Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909, algorithm 1): merge the most
frequent pair of neighbours, again and again. What makes it fast in Python is that nothing is done word by
word: all words lie behind each other in one array, linked forward and backward, and a merge works on all
occurrences of its pair at once. Counts are kept lazily: merging elsewhere can only take occurrences of a pair
away, so a count that was right once is an upper bound, and is made exact only when its pair comes first in
the queue.

The result depends on the words and their weights alone: of equally frequent pairs the one with the smaller
ids goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int32]
Weights = npt.NDArray[np.int64]
Symbols = npt.NDArray[np.uint16]

NUM_BYTES = 256
_DEAD = (
    0xFFFF  # the symbol of a position that its left neighbour has taken in, and of the one behind all words
)
MAX_TOKENS = _DEAD  # symbols are 16 bits wide


class PairMerger:
    """Words as sequences of tokens, and the queue of their pairs.

    Attributes:
        tokens: the bytes of every token; a merge adds one, or reuses one that has the same bytes.
    """

    def __init__(
        self,
        symbols: npt.ArrayLike,
        lengths: npt.NDArray[np.int64],
        weights: Weights,
        tokens: Sequence[bytes],
        *,
        max_token_bytes: int,
        min_weight: int,
    ) -> None:
        """Link the words and count their pairs.

        Args:
            symbols: token ids of all words, one word behind the other, shape (sum of lengths,).
            lengths: of each word, in tokens, at least 1, shape (number of words,).
            weights: how often each word counts, shape (number of words,).
            tokens: the bytes of the ids in `symbols`.
            max_token_bytes: pairs that would give a longer token are left alone.
            min_weight: rarer pairs are left alone, and cost nothing.
        """
        self.tokens = list(tokens)
        self._id_of = {token: id_ for id_, token in enumerate(self.tokens)}
        self._max_token_bytes, self._min_weight = max_token_bytes, max(1, min_weight)
        self._lengths = np.zeros(MAX_TOKENS + 1, dtype=np.int64)
        self._lengths[: len(self.tokens)] = [len(token) for token in self.tokens]
        self._end = end = int(lengths.sum())
        self._symbol: Symbols = np.full(end + 1, _DEAD, dtype=np.uint16)
        self._symbol[:end] = symbols
        self._weight: Weights = np.zeros(end + 1, dtype=np.int64)
        self._weight[:end] = np.repeat(weights, lengths)
        self._next: Positions = np.arange(1, end + 2, dtype=np.int32)
        self._previous: Positions = np.arange(-1, end, dtype=np.int32)
        stops = np.cumsum(lengths)
        self._next[stops - 1] = end
        self._previous[stops - lengths] = end
        self._next[end] = self._previous[end] = end
        self._queue: list[tuple[int, int, int]] = []
        self._occurrences: dict[tuple[int, int], tuple[int, Positions]] = {}
        self._count_all()

    def _count_all(self) -> None:
        firsts = np.flatnonzero(self._next[: self._end] != self._end).astype(np.int32)
        left = self._symbol[firsts]
        order = np.argsort(left, kind="stable")
        starts = np.flatnonzero(np.diff(left[order], prepend=-1))
        for group in np.split(firsts[order], starts[1:]) if len(starts) else []:
            self._add(int(self._symbol[group[0]]), self._symbol[self._next[group]], group, new_is_left=True)

    def _add(self, new: int, others: Symbols, positions: Positions, *, new_is_left: bool) -> None:
        """Queue the pairs of one token with others, given where each pair begins, in ascending order."""
        if not len(positions):
            return
        order = np.argsort(others, kind="stable")
        others, positions = others[order], positions[order]
        starts = np.flatnonzero(np.concatenate(([True], others[1:] != others[:-1])))
        stops = np.append(starts[1:], len(others))
        weights = np.add.reduceat(self._weight[positions], starts)
        symbols = others[starts]
        frequent = weights >= self._min_weight
        frequent &= self._lengths[symbols] + self._lengths[new] <= self._max_token_bytes
        for index in np.flatnonzero(frequent).tolist():
            other = int(symbols[index])
            pair = (new, other) if new_is_left else (other, new)
            self._put(pair, int(weights[index]), positions[starts[index] : stops[index]].copy())

    def _put(self, pair: tuple[int, int], weight: int, positions: Positions) -> None:
        if pair in self._occurrences:  # a merge gave a token that was there already
            positions = self._valid(pair, np.union1d(self._occurrences[pair][1], positions))
            weight = int(self._weight[positions].sum())
        self._occurrences[pair] = (weight, positions)
        heapq.heappush(self._queue, (-weight, *pair))

    def _valid(self, pair: tuple[int, int], positions: Positions) -> Positions:
        first = self._symbol[positions] == pair[0]
        first &= self._symbol[self._next[positions]] == pair[1]
        return positions[first]

    def pop(self) -> tuple[int, int] | None:
        """The most frequent pair; None when no pair is frequent enough."""
        while self._queue:
            weight, *ids = heapq.heappop(self._queue)
            pair = (ids[0], ids[1])
            bound, positions = self._occurrences.get(pair, (0, None))
            if positions is None or bound != -weight:
                continue  # an older entry of a pair that was queued again
            positions = self._valid(pair, positions)
            exact = int(self._weight[positions].sum())
            self._occurrences[pair] = (exact, positions)
            if exact == bound:
                return pair
            if exact >= self._min_weight:
                heapq.heappush(self._queue, (-exact, *pair))
            else:
                del self._occurrences[pair]
        return None

    def merge(self, pair: tuple[int, int]) -> bytes:
        """Merge all occurrences of the pair that `pop` gave; returns the bytes of the token they became."""
        positions = self._occurrences.pop(pair)[1]
        if pair[0] == pair[1]:
            positions = self._without_overlaps(positions)
        token = self.tokens[pair[0]] + self.tokens[pair[1]]
        new = self._id_of.setdefault(token, len(self.tokens))
        if new == len(self.tokens):
            self.tokens.append(token)
            self._lengths[new] = len(token)
        second = self._next[positions]
        behind = self._next[second]
        self._symbol[positions] = new
        self._symbol[second] = _DEAD
        self._next[positions] = behind
        self._previous[behind] = positions
        self._previous[self._end] = self._end
        before = self._previous[positions]
        # Where the token stands twice in a row, the pair is counted once, as one that begins with it.
        has_other = (before != self._end) & (self._symbol[before] != new)
        self._add(new, self._symbol[before[has_other]], before[has_other], new_is_left=False)
        has_next = behind != self._end
        self._add(new, self._symbol[behind[has_next]], positions[has_next], new_is_left=True)
        return token

    def _without_overlaps(self, positions: Positions) -> Positions:
        """Drop overlapping occurrences: in `aaa` the pair `aa` begins twice, and only the first is merged."""
        index = np.arange(len(positions))
        follows = np.zeros(len(positions), dtype=bool)
        follows[1:] = self._next[positions[:-1]] == positions[1:]
        start = np.maximum.accumulate(np.where(follows, 0, index))
        return positions[(index - start) % 2 == 0]


def train_bpe(
    merger: PairMerger,
    room: int,
    forced: Sequence[bytes],
    report: Callable[[int], object] = lambda count: None,
) -> list[bytes] | None:
    """Merge until the tokens of `merger` and the forced ones that are not among them fill `room`.

    Args:
        merger: the counted words.
        room: the number of tokens wanted.
        forced: tokens wanted whether or not they are learned; those that are not come last.
        report: hears of every merge how many tokens it added: 1, or 0 where the token was there already.

    Returns:
        The tokens, or None when no pair is left that is frequent enough.
    """
    missing = dict.fromkeys(token for token in forced if token not in set(merger.tokens))
    while len(merger.tokens) + len(missing) < room:
        pair = merger.pop()
        if pair is None:
            return None
        before = len(merger.tokens)
        missing.pop(merger.merge(pair), None)
        report(len(merger.tokens) - before)
    return [*merger.tokens, *missing]
