"""Weights are kept closely, in every stream and in every stretch, and change where they should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.dataloader.loader_state import NUM_STREAMS
from cpplm.dataloader.mixture import Mixture

weights = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)


@given(weights, st.integers(0, 10**9), st.integers(0, NUM_STREAMS - 1))
def test_every_stretch_of_a_stream_keeps_the_weights(shares: list[int], start: int, stream: int) -> None:
    mixture = Mixture(shares)
    found = [mixture.dataset_for_row((start + i) * NUM_STREAMS + stream) for i in range(300)]
    for number, share in enumerate(shares):
        assert abs(found.count(number) - 300 * share / sum(shares)) < 4
        assert share or number not in found


@given(weights, st.integers(0, 10**9))
def test_neighbouring_rows_keep_the_weights(shares: list[int], i: int) -> None:
    mixture = Mixture(shares)
    found = [mixture.dataset_for_row(i * NUM_STREAMS + stream) for stream in range(NUM_STREAMS)]
    for number, share in enumerate(shares):
        assert abs(found.count(number) - NUM_STREAMS * share / sum(shares)) <= 1


def test_late_weights_hold_from_their_row_on() -> None:
    mixture = Mixture([1, 0], [0, 1], late_from_row=100)
    assert [mixture.dataset_for_row(row) for row in range(200)] == [0] * 100 + [1] * 100


@pytest.mark.parametrize("shares", [[0.0, 0.0], [1.0, -0.5], [float("nan")], [1.0, float("inf")]])
def test_wrong_weights_are_refused(shares: list[float]) -> None:
    with pytest.raises(UserError, match="weights of data sets"):
        Mixture(shares)
