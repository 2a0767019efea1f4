"""Every token once, every row full, best fit found by bisection as by looking at all rows."""

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cpplm.dataloader.packing import Segment, _best_fit, pack_rows

documents = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 90)).map(lambda pair: (pair[0], sum(pair))), max_size=40
)


@given(documents, st.integers(1, 40))
@example([(0, 1)] * 39, 40)
@example([(0, 40)] * 3, 40)
@example([(7, 8), (0, 81)], 40)
def test_each_token_once_in_full_rows(documents: list[tuple[int, int]], row_length: int) -> None:
    rows, rest = pack_rows(documents, row_length)
    packed = Counter(
        (piece.document, token)
        for pieces in (*rows, rest)
        for piece in pieces
        for token in range(piece.start, piece.stop)
    )
    expected = {(n, token) for n, (first, stop) in enumerate(documents) for token in range(first, stop)}
    assert packed == Counter(expected)
    assert all(sum(piece.stop - piece.start for piece in row) == row_length for row in rows)
    assert sum(piece.stop - piece.start for piece in rest) < row_length
    assert all(piece.stop == documents[piece.document][1] for piece in rest)
    assert pack_rows(documents, row_length) == (rows, rest)


@given(st.lists(st.integers(1, 50), max_size=60))
def test_best_fit_takes_the_tightest_row(lengths: list[int]) -> None:
    """Against the plain rule: the rows' fills are the same."""
    fills: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, fill in enumerate(fills) if fill + length <= 50]
        if fitting:
            fills[max(fitting, key=lambda row: fills[row])] += length
        else:
            fills.append(length)
    rows = _best_fit([Segment(n, 0, length) for n, length in enumerate(lengths)], 50)
    assert sorted(sum(piece.stop for piece in row) for row in rows) == sorted(fills)


def test_few_documents_are_cut_that_fit_into_a_row() -> None:
    """Lengths spread as those of files are: many short, some long. Rows of an unpacked stream cut a third."""
    lengths = [int(length) for length in np.random.default_rng(0).lognormal(6.5, 1.5, 400)]
    short = {n for n, length in enumerate(lengths) if length <= 2048}
    rows, _ = pack_rows([(0, length) for length in lengths], 2048)
    pieces = Counter(piece.document for row in rows for piece in row)
    edges = np.cumsum([0, *lengths])
    concatenated = sum(bool(edges[n] // 2048 != (edges[n + 1] - 1) // 2048) for n in short)
    assert concatenated > 0.25 * len(short)
    assert sum(pieces[n] > 1 for n in short) < 0.01 * len(short)


def test_nothing_is_left_over_time_and_again() -> None:
    """Also where every window is a few rows only, and some documents are much shorter than the others."""
    random = np.random.default_rng(0)
    rest: list[tuple[int, int, int]] = []  # with the number of the window
    for window in range(300):
        documents = rest + [(0, int(length), window) for length in random.lognormal(5.5, 1.5, 20).clip(1)]
        packing = pack_rows([(first, length) for first, length, _ in documents], 2048)
        rest = [(piece.start, piece.stop, documents[piece.document][2]) for piece in packing.leftover]
        assert all(window - came < 6 for _, _, came in rest)
