"""Spans of syntax in a document's text, and the column of a parquet row that holds them.

The column `spans` holds one byte string per document. Its n spans are in the order of their starts, outer
before inner, as seven planes of n bytes each:

    0     kind
    1-4   start minus the start of the span before it (of the first: its start), lowest byte first
    5-6   length, lowest byte first

Planes of small differences compress to about two bytes per span; a list of structs takes four times that.
Offsets count bytes of the UTF-8 text, not characters.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

SPANS_COLUMN = "spans"
DOCSTRINGS_COLUMN = "docstrings"  # pairs of a comment and what it documents
BORROWED_COLUMN = "borrowed"  # ranges of bytes that stand in a document for what they declare alone
# Shorter ones (about five tokens) any random cut covers as well; longer ones leave no context around them.
MIN_BYTES = 20
MAX_BYTES = 10_000
_GAP_PLANES, _LENGTH_PLANES = 4, 2
_PLANES = 1 + _GAP_PLANES + _LENGTH_PLANES

# Rows of (start, end, kind), int32.
SpanTable = npt.NDArray[np.int32]


class SpanKind(IntEnum):
    """Kind of syntax that a span covers. The numbers are stored: never change one."""

    STATEMENT = 0  # inside a function, up to its ";" or "}"
    BLOCK = 1  # "{" to "}", where it is no function's body
    BODY = 2  # of a function, "{" to "}"
    FUNCTION = 3  # a whole definition, from `template` or its first specifier to the end of its body
    ARGUMENTS = 4  # of a call, "(" to ")"
    CONDITION = 5  # of `if`, `while`, `do` or `switch`, "(" to ")"


def pack_spans(spans: SpanTable) -> bytes:
    """The stored form of a document's spans, in whatever order they are given.

    Args:
        spans: rows of (start, end, kind); every length below 65,536.
    """
    ordered = spans[np.lexsort((spans[:, 2], -spans[:, 1], spans[:, 0]))]
    starts, ends, kinds = ordered.T
    gaps = np.diff(starts, prepend=np.int32(0))
    lengths = ends - starts
    planes = [kinds]
    planes += [gaps >> (8 * plane) for plane in range(_GAP_PLANES)]
    planes += [lengths >> (8 * plane) for plane in range(_LENGTH_PLANES)]
    return (np.stack(planes) & 0xFF).astype(np.uint8).tobytes()


def unpack_spans(data: bytes) -> SpanTable:
    """The inverse of `pack_spans`: spans in the order of starts, outer before inner.

    Raises:
        ValueError: these are no packed spans.
    """
    if len(data) % _PLANES:
        raise ValueError(f"{len(data)} bytes are no packed spans")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(_PLANES, -1).astype(np.int32)
    gaps = sum(planes[1 + plane] << (8 * plane) for plane in range(_GAP_PLANES))
    lengths = sum(planes[1 + _GAP_PLANES + plane] << (8 * plane) for plane in range(_LENGTH_PLANES))
    starts = np.cumsum(gaps, dtype=np.int32)
    return np.stack([starts, starts + lengths, planes[0]], axis=1).astype(np.int32, copy=False)
