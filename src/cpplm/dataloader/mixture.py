"""Mixing of data sets, row by row: weights kept as evenly as they can be, without a memory.

A stream's i-th row looks up u = frac(i * golden ratio + stream / streams) in the weights laid end to end.
These numbers fill the unit interval more evenly than any random draw (a Weyl sequence; L. Kuipers, H.
Niederreiter, "Uniform Distribution of Sequences", 1974, section 2.3), and as they follow from the number of
the row alone, weights may change between rows and on resume. They are computed in integers: equal on every
machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import fsum, inf

from cpplm.core.errors import UserError
from cpplm.dataloader.loader_state import NUM_STREAMS

_ONE = 2**64
_GOLDEN_RATIO = 11400714819323198485  # its fractional part, as a share of _ONE


class Mixture:
    """Weights of the data sets, others from some row on if asked."""

    def __init__(
        self,
        weights: Sequence[float],
        late_weights: Sequence[float] | None = None,
        late_from_row: int | None = None,
    ) -> None:
        """Weights need not add up to one.

        Raises:
            UserError: a weight is negative, or all are zero.
        """
        self._early = _edges(weights)
        self._late = self._early if late_weights is None else _edges(late_weights)
        self._late_from_row = late_from_row

    def dataset_for_row(self, row: int) -> int:
        """The number of the data set that gives the run's row of that number."""
        late = self._late_from_row is not None and row >= self._late_from_row
        i, stream = divmod(row, NUM_STREAMS)
        point = (i * _GOLDEN_RATIO + stream * (_ONE // NUM_STREAMS)) % _ONE
        return bisect_right(self._late if late else self._early, point)


def _edges(weights: Sequence[float]) -> list[int]:
    """Boundaries between the data sets' shares of the interval."""
    total = fsum(weights)
    if any(weight < 0 for weight in weights) or not 0 < total < inf:
        raise UserError(
            f"weights of data sets {list(weights)} must not be negative, and not all zero",
            fix="Give each data set a share, such as 3 and 1.",
        )
    return [int(fsum(weights[:end]) / total * _ONE) for end in range(1, len(weights))]
