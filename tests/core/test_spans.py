import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.spans import MAX_BYTES, SpanKind, pack_spans, unpack_spans


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(draw(st.integers(0, 40))):
        start = draw(st.integers(0, 2**31 - 1 - MAX_BYTES))
        found.append((start, start + draw(st.integers(1, MAX_BYTES)), draw(st.sampled_from(SpanKind))))
    return found


def table(rows: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int32).reshape(-1, 3)


@given(spans())
def test_what_was_packed_is_read_back_in_order_outer_before_inner(rows):
    packed = pack_spans(table(rows))
    assert len(packed) == 7 * len(rows)
    expected = sorted(rows, key=lambda row: (row[0], -row[1], row[2]))
    assert [tuple(row) for row in unpack_spans(packed).tolist()] == expected


@given(spans(), st.randoms(use_true_random=False))
def test_the_stored_bytes_do_not_depend_on_the_order_found(rows, random):
    shuffled = random.sample(rows, len(rows))
    assert pack_spans(table(rows)) == pack_spans(table(shuffled))


def test_no_bytes_are_no_spans_and_other_bytes_are_refused():
    assert unpack_spans(b"").tolist() == []
    with pytest.raises(ValueError, match="8 bytes"):
        unpack_spans(b"12345678")


def test_stored_numbers_never_change():
    assert {kind.name: kind.value for kind in SpanKind} == {
        "STATEMENT": 0, "BLOCK": 1, "BODY": 2, "FUNCTION": 3, "ARGUMENTS": 4, "CONDITION": 5,
    }  # fmt: skip
