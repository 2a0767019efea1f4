"""Uncertainty of figures: intervals of rates, standard errors of clustered means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """The 95 percent score interval of a success rate; it holds for few trials and rates near 0 and 1, too.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z = NormalDist().inv_cdf((1 + 0.95) / 2)
    rate, shrink = successes / trials, 1 + z * z / trials
    middle = (rate + z * z / (2 * trials)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / shrink
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class MeanEstimate:
    """The mean of `n` values; `error` is its standard error, None for a single value."""

    value: float
    error: float | None
    n: int


def clustered_mean(values: Sequence[float], groups: Sequence[str]) -> MeanEstimate:
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
        return MeanEstimate(mean, None, 1)
    sums: dict[str, float] = {}
    for value, group in zip(values, groups, strict=True):
        sums[group] = sums.get(group, 0.0) + value - mean
    squares = math.fsum((value - mean) ** 2 for value in values)
    pairs = math.fsum(total**2 for total in sums.values()) - squares
    return MeanEstimate(mean, math.sqrt(max(0.0, squares / (n * (n - 1)) + pairs / n**2)), n)


def mcnemar_p_value(gained: int, lost: int) -> float:
    """The two-sided p-value of McNemar's exact test: are as many pairs won as lost?

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions"; exact
    by the binomial distribution.
    """
    discordant = gained + lost
    tail = sum(math.comb(discordant, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**discordant)


def paired_bootstrap_interval(differences: Sequence[float], groups: Sequence[str]) -> tuple[float, float]:
    """The 95 percent interval of a mean difference, by drawing whole groups anew (percentile bootstrap).

    Source: Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13. The draws' seed is fixed.

    Args:
        differences: one of each pair, at least one.
        groups: for each the name of what it belongs to; pairs of one group are not independent.
    """
    names = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    places = [names[name] for name in groups]
    sums, sizes = np.bincount(places, weights=differences), np.bincount(places)
    drawn = np.random.default_rng(0).integers(len(names), size=(4000, len(names)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
