"""Rows of nothing but borrowed text are left out; own text never is."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.dataloader.borrowed import training_stretches
from cpplm.dataloader.encoding import PlainEncoder, RawDocument
from cpplm.dataloader.fim import FimEncoder, FimSettings, invert
from tests.texts import cpp_document


def ranges(*pairs):
    return [{"start": start, "end": end} for start, end in pairs]


@pytest.mark.parametrize(
    ("borrowed", "expected"),
    [
        ([], [(0, 100)]),
        ([(0, 60)], [(56, 100)]),
        ([(0, 60), (80, 100)], [(56, 80)]),
        ([(0, 60), (70, 90)], [(56, 70), (86, 100)]),
        ([(0, 60), (62, 64)], [(56, 100)]),  # the context of the second stretch reaches the first
        ([(0, 100)], [(0, 100)]),
    ],
)
def test_own_text_with_a_quarter_of_a_row_before_it(borrowed, expected):
    assert training_stretches(ranges(*borrowed), np.arange(101), 16) == expected


def test_a_document_that_fits_a_row_stays_whole():
    assert training_stretches(ranges((0, 90)), np.arange(101), 100) == [(0, 100)]


@given(st.lists(st.integers(1, 9), min_size=20, max_size=80), st.lists(st.integers(0, 400), max_size=8))
def test_every_own_byte_is_in_one_stretch(lengths, marks):
    edges = np.cumsum([0, *lengths])
    marks = sorted({mark for mark in marks if mark <= edges[-1]})
    borrowed = list(zip(marks[::2], marks[1::2], strict=False))
    stretches = training_stretches(ranges(*borrowed), edges, 8)
    assert all(a[1] < b[0] for a, b in pairwise(stretches))
    covered = {int(byte) for first, last in stretches for byte in range(edges[first], edges[last])}
    own = set(range(edges[-1])) - {byte for start, end in borrowed for byte in range(start, end)}
    assert own <= covered


@pytest.mark.parametrize("rate", [0.0, 1.0], ids=["plain", "fim"])
def test_encoders_leave_it_out(rate, tokenizer, tokenizer_path):
    others, own = cpp_document(1) * 9, cpp_document(2) * 3
    about = (str(tokenizer_path), tokenizer.hash)
    encoder = FimEncoder(*about, FimSettings(fim_rate=rate), 64) if rate else PlainEncoder(*about, 64)
    document = RawDocument(others + own, (0, 0, 0), borrowed=ranges((0, len(others.encode()))))
    [pieces] = encoder.encode([document])
    text = b"".join(invert(piece, tokenizer) for piece in pieces).decode()
    assert (others + own).endswith(text)
    assert text.endswith(own)
    assert len(tokenizer.encode(text)) <= len(tokenizer.encode(own)) + 20
