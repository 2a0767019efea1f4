"""Schedules at their corners."""

import pytest

from cpplm.optim.schedules import learning_rate_multiplier, muon_momentum, weight_decay_multiplier


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.5, 1.0), (0.6, 1.0), (0.8, 0.55), (1.0, 0.1), (1.2, 0.1)],
)
def test_trapezoid(progress: float, expected: float) -> None:
    value = learning_rate_multiplier(progress, warmup_ratio=0.1, warmdown_ratio=0.4, final_lr_frac=0.1)
    assert value == pytest.approx(expected)


def test_no_warmup_no_warmdown() -> None:
    for progress in (0.0, 0.5, 1.0):
        assert learning_rate_multiplier(progress, warmup_ratio=0, warmdown_ratio=0, final_lr_frac=0) == 1.0


def test_momentum_and_decay() -> None:
    assert muon_momentum(0) == pytest.approx(0.85)
    assert muon_momentum(10_000) == pytest.approx(0.95)
    assert [weight_decay_multiplier(p) for p in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
