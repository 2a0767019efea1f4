"""Packing of documents into rows: best-fit, that fills every row to the last token and drops none.

Documents longer than a row give whole rows first. What is left of them and the shorter documents are packed
whole, longest first, each into the fullest row that still has room (best-fit decreasing; the row is found by
bisection). Most of these rows are not full, so some are dissolved and their segments moved into the gaps
of the others. Dissolved first, and moved first, is what was cut before: documents that fit into a row stay in
one piece almost always. Less than one row is left over in the end and kept for the next packing, in which it
comes first, so that nothing is left over time and again.

Conversations are packed whole instead, best-fit too, into rows that need not be full.

Pure functions of lengths: nothing here knows what the tokens are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """Tokens `start` to `stop` (exclusive) of a document."""

    document: int
    start: int
    stop: int


class RowLayout(NamedTuple):
    """Rows of segments that fill them exactly, and less than a row of segments that are ends of documents."""

    rows: list[list[Segment]]
    leftover: list[Segment]


def pack_rows(documents: Sequence[tuple[int, int]], row_length: int) -> RowLayout:
    """Pack documents into rows.

    Args:
        documents: of each, its first token that is still to be packed, and its length, which is greater;
            those left over from the last packing first.
        row_length: tokens of a row.
    """
    whole: list[list[Segment]] = []
    ends: list[Segment] = []
    for document, (first, length) in enumerate(documents):
        last = length - (length - first) % row_length
        whole += [[Segment(document, at, at + row_length)] for at in range(first, last, row_length)]
        if last < length:
            ends.append(Segment(document, last, length))
    rows = _best_fit(ends, row_length)
    rows.sort(key=lambda row: (_uncut(row), _tokens(row)), reverse=True)
    full = _tokens(ends) // row_length
    dissolved = [segment for row in rows[full:] for segment in row]
    dissolved.sort(key=lambda segment: (segment.start == 0, segment.document))
    leftover = _fill_gaps(dissolved, rows[:full], row_length)
    return RowLayout(whole + rows[:full], leftover)


def pack_whole(lengths: Sequence[int], row_length: int) -> RowLayout:
    """Pack documents that are no longer than a row, each in one piece; rows may have room left.

    Args:
        lengths: of the documents, in tokens.
        row_length: tokens of a row.
    """
    segments = [Segment(document, 0, length) for document, length in enumerate(lengths)]
    return RowLayout(_best_fit(segments, row_length), [])


def _tokens(segments: Sequence[Segment]) -> int:
    return sum(segment.stop - segment.start for segment in segments)


def _uncut(segments: Sequence[Segment]) -> int:
    """Tokens of documents that have lost nothing to another row."""
    return sum(segment.stop for segment in segments if segment.start == 0)


def _best_fit(segments: Sequence[Segment], row_length: int) -> list[list[Segment]]:
    """Rows that hold the segments whole, none overfull."""
    rows: list[list[Segment]] = []
    room: list[tuple[int, int]] = []  # tokens that still fit, and the row; sorted
    for segment in sorted(segments, key=lambda segment: (segment.start - segment.stop, segment.document)):
        length = segment.stop - segment.start
        tightest = bisect_left(room, (length, 0))
        if tightest == len(room):
            room.append((row_length, len(rows)))  # an empty row has the most room: it belongs at the end
            rows.append([])
        left, row = room.pop(tightest)
        rows[row].append(segment)
        insort(room, (left - length, row))
    return rows


def _fill_gaps(segments: Sequence[Segment], rows: list[list[Segment]], row_length: int) -> list[Segment]:
    """Fill the rows to the end with tokens of `segments`, in order; returns what is left of these."""
    waiting = list(reversed(segments))
    for row in rows:
        gap = row_length - _tokens(row)
        while gap:
            document, start, stop = waiting.pop()
            count = min(gap, stop - start)
            row.append(Segment(document, start, start + count))
            gap -= count
            if start + count < stop:
                waiting.append(Segment(document, start + count, stop))
    return waiting[::-1]
