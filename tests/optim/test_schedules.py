"""Schedules at their corners."""

from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.optim.schedules import Schedule


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.5, 1.0), (0.6, 1.0), (0.8, 0.55), (1.0, 0.1), (1.2, 0.1)],
)
def test_trapezoid(progress: float, expected: float) -> None:
    schedule = Schedule(warmup_ratio=0.1, warmdown_ratio=0.4, final_lr_frac=0.1)
    assert schedule.learning_rate(progress, 1000) == pytest.approx(expected)


def test_warm_up_by_steps() -> None:
    schedule = Schedule(warmup_steps=4)
    rates = [schedule.learning_rate(step / 100, step) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_no_warmup_no_warmdown() -> None:
    for progress in (0.0, 0.5, 1.0):
        assert Schedule(warmdown_ratio=0.0).learning_rate(progress, 0) == 1.0


def test_momentum_rises_and_falls() -> None:
    schedule = Schedule(muon_momentum=0.97, muon_momentum_steps=400, muon_final_momentum=0.90)
    points = [(0.0, 0), (0.1, 200), (0.5, 400), (0.8, 4000), (1.0, 5000)]
    assert [schedule.momentum(*point) for point in points] == pytest.approx([0.85, 0.91, 0.97, 0.935, 0.90])
    assert Schedule(muon_momentum_steps=0).momentum(0.0, 0) == pytest.approx(0.95)


def test_weight_decay_ends_at_zero() -> None:
    assert [Schedule().weight_decay(p) for p in (0.0, 0.25, 1.0, 1.1)] == [1.0, 0.75, 0.0, 0.0]
    cosine = Schedule(weight_decay_shape="cosine")
    assert [cosine.weight_decay(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup_ratio": 0.7, "warmdown_ratio": 0.6}, "overlap"),
        ({"warmdown_ratio": float("nan")}, "not a share"),
        ({"warmup_ratio": 0.1, "warmup_steps": 5}, "both set"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"muon_momentum": 1.0}, "muon_momentum"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schedule(**values)
