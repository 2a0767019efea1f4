"""Means and their standard errors, against plain formulas."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.evaluate.clustered_stderr import estimate

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=20)


@given(VALUES)
def test_independent_values_have_the_usual_standard_error(values: list[float]) -> None:
    found = estimate(values, [str(number) for number in range(len(values))])
    assert found.n == len(values)
    assert found.value == pytest.approx(statistics.fmean(values))
    assert found.error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


@given(VALUES, st.integers(1, 5))
def test_clusters_against_the_sum_over_pairs(values: list[float], count: int) -> None:
    groups = [str(number % count) for number in range(len(values))]
    n, mean = len(values), statistics.fmean(values)
    pairs = sum(
        (values[i] - mean) * (values[j] - mean)
        for i in range(n)
        for j in range(n)
        if i != j and groups[i] == groups[j]
    )
    expected = statistics.variance(values) / n + pairs / n**2
    assert estimate(values, groups).error == pytest.approx(math.sqrt(max(0, expected)), abs=1e-6)


def test_copies_of_a_value_add_no_certainty() -> None:
    values, groups = [0.0, 1.0, 1.0, 0.0], list("abcd")
    once = estimate(values, groups).error
    ten_times = estimate(values * 10, groups * 10).error
    naive = estimate(values * 10, [str(number) for number in range(40)]).error
    assert once is not None
    assert ten_times is not None
    assert naive is not None
    assert naive < once / 2 < ten_times


def test_a_single_value_has_no_error() -> None:
    assert (estimate([0.5], ["a"]).value, estimate([0.5], ["a"]).error) == (0.5, None)
