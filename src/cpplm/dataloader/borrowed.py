"""Rows of a document that hold nothing but text borrowed from other units are not trained on.

A document begins with what its own code needs of the rest of the project. In a row that holds both, that is
context; where documents are longer than rows, a row of borrowed text alone shows no code that uses it, and
the same text comes again with the next document of the project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

# Of a row, the part that borrowed text before own text may have.
_CONTEXT = 4


def training_stretches(
    borrowed: Sequence[Mapping[str, int]], edges: npt.NDArray[np.int64], row_length: int
) -> list[tuple[int, int]]:
    """The tokens of a document to train on, as ranges: own text, and before it at most a quarter of a row.

    All of it where it fits a row, borrows nothing, or has nothing of its own.

    Args:
        borrowed: column of that name; ranges of bytes, `start` to `end` (exclusive), in order.
        edges: offsets between the document's tokens, 0 and the end included, shape (tokens + 1,).
        row_length: tokens of a row.
    """
    total = len(edges) - 1
    if total <= row_length or not borrowed:
        return [(0, total)]
    # A token that is partly own counts as own.
    starts = np.searchsorted(edges, [each["start"] for each in borrowed], side="left")
    ends = np.searchsorted(edges, [each["end"] for each in borrowed], side="right") - 1
    stretches: list[tuple[int, int]] = []
    first = 0
    for start, end in zip([*starts.tolist(), total], [*ends.tolist(), total], strict=True):
        if start > first:  # own tokens from `first` to `start`
            begin = max(first - row_length // _CONTEXT, 0)
            if stretches and begin <= stretches[-1][1]:
                begin = stretches.pop()[0]
            stretches.append((begin, start))
        first = max(end, start)
    return stretches or [(0, total)]
