"""A mean with its standard error, where some of the values belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """The mean of `n` values; `error` is its standard error, None for a single value."""

    value: float
    error: float | None
    n: int


def estimate(values: Sequence[float], groups: Sequence[str]) -> Estimate:
    """The mean of values, with a standard error that knows which of them are not independent.

    Holes in one function are easy or hard together, so their number says less than that of the functions.
    With n values s and their mean m, pairs being those of two values in one group:

        error^2 = sum over values of (s - m)^2 / (n (n - 1)) + sum over pairs of (s_i - m) (s_j - m) / n^2

    Source: Miller 2024, "Adding Error Bars to Evals" (arXiv 2411.00640), on clustered standard errors.

    Args:
        values: at least one.
        groups: for each value the name of what it belongs to.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, 1)
    sums: dict[str, float] = {}
    for value, group in zip(values, groups, strict=True):
        sums[group] = sums.get(group, 0.0) + value - mean
    squares = math.fsum((value - mean) ** 2 for value in values)
    pairs = math.fsum(total**2 for total in sums.values()) - squares
    return Estimate(mean, math.sqrt(max(0.0, squares / (n * (n - 1)) + pairs / n**2)), n)
