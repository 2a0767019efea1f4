"""N-gram model of a project, interpolated with the probabilities of a neural one.

A cache language model (Kuhn and De Mori 1990) of unbounded order (infini-gram, Liu et al. 2024, arXiv
2401.17377): of the longest end of the context that stands in the project, up to `MAX_MATCH` tokens, the token
that follows it there most often, the follower, gets a share of the probability:

    p(token) = w [token = follower] + (1 - w) p_model(token)
    logit(w) = a + b log2(length) + c log((n_follower + 1/2) / (n_others + 1/2))

n counts the places of the match by what follows them. The model itself is not touched, nor what it keeps of
prompts.

Shapes: N tokens of all texts, V vocabulary.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAX_MATCH = 32
_MIN_MATCH = 2
_MAX_PLACES = 1000  # of a match that are counted
_SEPARATOR = -1  # in front of each text and behind the last one
# By maximum likelihood of 300 single lines of 27 projects with the model of an hour (LOG.md, 2026-11-29).
WEIGHTS = (-3.09, 0.51, 0.94)


class NgramMatch(NamedTuple):
    """The longest match of a context's end."""

    follower: int
    """The most frequent token behind it."""
    length: int
    """Tokens that match."""
    places: int
    """Places with this follower."""
    others: int
    """Places with another one."""

    @property
    def weight(self) -> float:
        """The share of the probability that the follower gets beside the model's own."""
        odds = math.log((self.places + 0.5) / (self.others + 0.5))
        score = WEIGHTS[0] + WEIGHTS[1] * math.log2(self.length) + WEIGHTS[2] * odds
        return 1 / (1 + math.exp(-score))


class NgramIndex:
    """All places of some texts in the order of the tokens that end there, read backwards: a suffix array."""

    def __init__(self, texts: Mapping[str, Sequence[int] | npt.NDArray[np.int32]]) -> None:
        """Sort the places, in O(N log N); 8 bytes for each token.

        Args:
            texts: ids by the name of each text.
        """
        parts, self._ranges, length = [], dict[str, range](), 0
        for name, ids in texts.items():
            parts += [np.array([_SEPARATOR], np.int32), np.asarray(ids, np.int32)]
            self._ranges[name] = range(length, length + 1 + len(ids))
            length += 1 + len(ids)
        self._ids_N = np.concatenate([*parts, np.array([_SEPARATOR], np.int32)])
        self._order_N = _sorted_places(self._ids_N)

    def longest_match(self, context: Sequence[int], exclude: str = "") -> NgramMatch | None:
        """The longest match of a context's end; None where fewer than two tokens match.

        Args:
            context: ids.
            exclude: name of a text whose places do not count.
        """
        intervals = list(self._intervals(context))
        excluded = self._ranges.get(exclude, range(0))
        for length in range(len(intervals), _MIN_MATCH - 1, -1):
            first, end = intervals[length - 1]
            places = self._order_N[first : min(end, first + _MAX_PLACES)]
            if excluded:
                places = places[(places < excluded.start) | (places >= excluded.stop)]
            followers = self._ids_N[places + 1]
            values, counts = np.unique(followers[followers != _SEPARATOR], return_counts=True)
            if len(values):
                best = int(counts.argmax())
                count = int(counts[best])
                return NgramMatch(int(values[best]), length, count, int(counts.sum()) - count)
        return None

    def _intervals(self, context: Sequence[int]) -> list[tuple[int, int]]:
        """Ranges of the order with the places that match the last token, the last two, and so on."""
        ids, order = self._ids_N, self._order_N
        first, end = 0, len(order)
        found: list[tuple[int, int]] = []
        for back, token in enumerate(reversed(context[-MAX_MATCH:])):

            def before(place: int, back: int = back) -> int:
                return int(ids[order[place] - back])

            places = range(end)
            first = bisect_left(places, token, lo=first, key=before)
            end = bisect_left(places, token + 1, lo=first, key=before)
            if first == end:
                break
            found.append((first, end))
        return found


def _sorted_places(ids_N: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """All places, sorted by the last `MAX_MATCH` tokens, the last one first.

    By prefix doubling (Karp, Miller and Rosenberg 1972): two ranks of half the length are one of the whole.
    """
    ranks_N = np.unique(ids_N, return_inverse=True)[1].astype(np.int64)
    length = 1
    while length < MAX_MATCH:
        before_N = np.zeros_like(ranks_N)
        before_N[length:] = ranks_N[:-length] + 1
        ranks_N = np.unique(ranks_N * (len(ids_N) + 1) + before_N, return_inverse=True)[1]
        length *= 2
    return np.argsort(ranks_N, kind="stable").astype(np.int32)


@dataclass(frozen=True)
class NgramMixture:
    """A model's probabilities with the followers of a context's longest match, for one cursor."""

    project: NgramIndex
    around: NgramIndex
    """Of the file with the cursor; of matches of one length it counts."""
    exclude: str = ""
    """Name of that file in the project: as it is saved it has, behind what is before the cursor, what is
    behind the cursor."""

    def longest_match(self, context: Sequence[int]) -> NgramMatch | None:
        """The longest match of a context's end around the cursor and in the project."""
        here, there = self.around.longest_match(context), self.project.longest_match(context, self.exclude)
        if here is None or there is None:
            return here or there
        return there if there.length > here.length else here

    def mix(self, logits_V: Tensor, context: Sequence[int]) -> Tensor:
        """Log-probabilities of the mixture behind a context; the logits where nothing matches."""
        match = self.longest_match(context)
        if match is None:
            return logits_V
        logprobs_V = logits_V.log_softmax(-1) + math.log1p(-match.weight)
        share = logits_V.new_tensor(math.log(match.weight))
        logprobs_V[match.follower] = torch.logaddexp(logprobs_V[match.follower], share)
        return logprobs_V
