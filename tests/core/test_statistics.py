"""Intervals and standard errors, against plain formulas."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.statistics import clustered_mean, wilson_interval


@pytest.mark.parametrize(
    ("rate", "trials", "low", "high"),
    [
        (0.5, 10, 0.2366, 0.7634),  # as R's prop.test without correction gives them
        (0.0, 20, 0.0, 0.1611),
        (1.0, 164, 0.9771, 1.0),
        (0.1, 100, 0.0552, 0.1744),
    ],
)
def test_known_values(rate: float, trials: int, low: float, high: float) -> None:
    assert wilson_interval(rate * trials, trials) == pytest.approx((low, high), abs=2e-4)


@given(st.integers(1, 500), st.floats(0.01, 0.99))
def test_it_solves_its_equation(trials: int, rate: float) -> None:
    """Both ends are 1.96 standard errors away, by the standard error that they themselves have."""
    for end in wilson_interval(rate * trials, trials):
        deviation = abs(rate - end) / math.sqrt(end * (1 - end) / trials)
        assert deviation == pytest.approx(1.96, rel=1e-3)


VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=20)


@given(VALUES)
def test_independent_values_have_the_usual_standard_error(values: list[float]) -> None:
    found = clustered_mean(values, [str(number) for number in range(len(values))])
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
    assert clustered_mean(values, groups).error == pytest.approx(math.sqrt(max(0, expected)), abs=1e-6)


def test_a_single_value_has_no_error() -> None:
    assert (clustered_mean([0.5], ["a"]).value, clustered_mean([0.5], ["a"]).error) == (0.5, None)
