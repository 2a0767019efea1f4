"""Which tokens share a row: best-fit packing that fills every row to the last token and drops none.

Documents longer than a row give whole rows first. What is left of them and the shorter documents are packed
whole, longest first, each into the fullest row that still has room (best-fit decreasing; the row is found by
bisection). Most of these rows are not full, so some are dissolved and their pieces poured into the gaps of
the others. Dissolved first, and poured first, is what was cut before: documents that fit into a row stay in
one piece almost always. Less than one row is left over in the end and kept for the next packing, in which it
comes first, so that nothing is left over time and again.

Pure functions of lengths: nothing here knows what the tokens are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Tokens `start` to `stop` (exclusive) of a document."""

    document: int
    start: int
    stop: int


class Packing(NamedTuple):
    """Rows of pieces that fill them exactly, and less than a row of pieces that are ends of documents."""

    rows: list[list[Piece]]
    rest: list[Piece]


def pack(documents: Sequence[tuple[int, int]], row_length: int) -> Packing:
    """Pack documents into rows.

    Args:
        documents: of each, its first token that is still to be packed, and its length, which is greater;
            those left over from the last packing first.
        row_length: tokens of a row.
    """
    whole: list[list[Piece]] = []
    ends: list[Piece] = []
    for document, (first, length) in enumerate(documents):
        last = length - (length - first) % row_length
        whole += [[Piece(document, at, at + row_length)] for at in range(first, last, row_length)]
        if last < length:
            ends.append(Piece(document, last, length))
    rows = _best_fit(ends, row_length)
    rows.sort(key=lambda row: (_uncut(row), _tokens(row)), reverse=True)
    full = _tokens(ends) // row_length
    dissolved = [piece for row in rows[full:] for piece in row]
    dissolved.sort(key=lambda piece: (piece.start == 0, piece.document))
    rest = _pour(dissolved, rows[:full], row_length)
    return Packing(whole + rows[:full], rest)


def _tokens(pieces: Sequence[Piece]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)


def _uncut(pieces: Sequence[Piece]) -> int:
    """Tokens of documents that have lost nothing to another row."""
    return sum(piece.stop for piece in pieces if piece.start == 0)


def _best_fit(pieces: Sequence[Piece], row_length: int) -> list[list[Piece]]:
    """Rows that hold the pieces whole, none overfull."""
    rows: list[list[Piece]] = []
    room: list[tuple[int, int]] = []  # tokens that still fit, and the row; sorted
    for piece in sorted(pieces, key=lambda piece: (piece.start - piece.stop, piece.document)):
        length = piece.stop - piece.start
        tightest = bisect_left(room, (length, 0))
        if tightest == len(room):
            room.append((row_length, len(rows)))  # an empty row has the most room: it belongs at the end
            rows.append([])
        left, row = room.pop(tightest)
        rows[row].append(piece)
        insort(room, (left - length, row))
    return rows


def _pour(pieces: Sequence[Piece], rows: list[list[Piece]], row_length: int) -> list[Piece]:
    """Fill the rows to the end with tokens of `pieces`, in order; returns what is left of these."""
    waiting = list(reversed(pieces))
    for row in rows:
        gap = row_length - _tokens(row)
        while gap:
            document, start, stop = waiting.pop()
            taken = min(gap, stop - start)
            row.append(Piece(document, start, start + taken))
            gap -= taken
            if start + taken < stop:
                waiting.append(Piece(document, start + taken, stop))
    return waiting[::-1]
