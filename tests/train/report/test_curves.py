"""Thinned curves keep what matters; every axis; charts only of what a log has."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.train.report.curves import MOST_POINTS, downsample, run_charts, series, smooth
from cpplm.train.report.log_reader import AXES, RunHistory
from tests.train.report.test_log_reader import session, steps, validation, write_log

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=400)


@given(VALUES, st.integers(2, 40).map(lambda number: 2 * number))
def test_thinning_keeps_the_extremes_of_every_part(values: list[float], most: int) -> None:
    kept = downsample(values, most)
    assert kept == sorted(set(kept))
    assert len(kept) == len(values) if len(values) <= most else 0 < len(kept) <= most
    if len(values) > most:
        bins = most // 2
        for number in range(bins):
            part = range(number * len(values) // bins, (number + 1) * len(values) // bins)
            inside = [values[place] for place in kept if place in part]
            assert min(inside) == min(values[place] for place in part)
            assert max(inside) == max(values[place] for place in part)


@given(st.floats(-1e3, 1e3), st.integers(1, 300))
def test_the_average_of_equal_values_is_that_value(value: float, count: int) -> None:
    assert smooth([value] * count) == pytest.approx([value] * count)


def test_the_average_of_a_long_curve_reaches_further() -> None:
    def remainder(count: int) -> float:
        """Of a single spike, twenty values later."""
        values = [0.0] * count
        values[count // 2] = 1.0
        return smooth(values)[count // 2 + 20]

    assert remainder(200) == pytest.approx(0.05 * 0.95**20, rel=0.01)
    assert remainder(20_000) == pytest.approx(0.005 * 0.995**20, rel=0.01)


def test_a_series_has_its_points_on_every_axis(tmp_path: Path) -> None:
    history = RunHistory(write_log(tmp_path, [session(0, 0), *steps(0, 1, 4)]))
    line = series(history, "name", "line", history.steps, [1.0, math.nan, math.inf, 1 / 3], color=2)
    assert line["y"] == [1, 0.33333]
    assert line["x"] == {"step": [1, 4], "tokens": [100, 400], "seconds": [0.5, 2], "wall_seconds": [1, 4]}
    assert tuple(line["x"]) == AXES
    assert line["color"] == 2


def test_charts_of_what_is_there(tmp_path: Path) -> None:
    records = [session(0, 0), validation(0, 0, 3.0), *steps(0, 1, 10)]
    titles = [chart["title"] for chart in run_charts(RunHistory(write_log(tmp_path, records)))]
    assert "Validation" in titles
    assert "C++ problems" not in titles
    assert "Share of the peak rate" not in titles
    more = {"event": "cpp_evaluation", "time": 3, "step": 2, "compile_rate": 0.5, "pass@1": 0.25}
    failed = {"event": "cpp_evaluation", "time": 4, "step": 3, "failed": "no sandbox"}
    records = [*records[:2], *steps(0, 1, 10, mfu=0.5), more, failed]
    charts = {chart["title"]: chart for chart in run_charts(RunHistory(write_log(tmp_path, records)))}
    assert [line["y"] for line in charts["C++ problems"]["series"]] == [[50], [25]]
    assert charts["Share of the peak rate"]["series"][1]["y"] == [50] * 10


def test_a_long_log_is_thinned_and_its_spike_is_still_there(tmp_path: Path) -> None:
    records = [session(0, 0), *steps(0, 1, 5000)]
    records[2345]["loss"] = 99.0
    charts = {chart["title"]: chart for chart in run_charts(RunHistory(write_log(tmp_path, records)))}
    raw = charts["Loss"]["series"][0]
    assert len(raw["y"]) <= MOST_POINTS
    assert raw["x"]["step"][raw["y"].index(99)] == 2345
