import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.statistics import wilson_interval


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
