"""Curves for the pages: what the script in the page draws, thinned so that a page stays small.

Rule: a curve of more than `MOST_POINTS` points is cut into bins of equal numbers of points, and each bin
gives its lowest and its highest point, in order. A spike in one step of 100,000 is still there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from cpplm.train.report.log_reader import AXES, Record, RunHistory

MOST_POINTS = RunHistory.max_points
_DIGITS = 5  # significant digits of a value on the page

Style = Literal["faint", "line", "dots"]


def downsample(values: Sequence[float], limit: int = MOST_POINTS) -> list[int]:
    """Ascending places of the points to draw, at most `limit` (even): see the rule above."""
    if len(values) <= limit:
        return list(range(len(values)))
    bins, indices = limit // 2, set[int]()
    for number in range(bins):
        places = range(number * len(values) // bins, (number + 1) * len(values) // bins)
        indices |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(indices)


def smooth(values: Sequence[float], steps_per_value: int = 1) -> list[float]:
    """Exponential average over 1 % of the steps, over 20 where that is more.

    Without the pull of its start (Kingma and Ba 2015, arXiv 1412.6980, section 3).

    Args:
        values: of each step, or means of as many steps as the next says.
        steps_per_value: how many.
    """
    keep = 1 - 1 / max(20 / steps_per_value, len(values) / 100, 1)
    averages, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        averages.append(total / weight)
    return averages


def series(
    history: RunHistory,
    name: str,
    style: Style,
    records: Sequence[Record],
    values: Sequence[float],
    color: int = 0,
) -> dict[str, Any]:
    """One line of a chart: its points on every axis.

    Args:
        history: of the run that the records are of.
        name: for the legend.
        style: "faint" for raw figures, "line", or "dots" for few measurements.
        records: each with its `step`.
        values: one for each record; those that are no finite number are not drawn.
        color: number of its colour.
    """
    pairs = [pair for pair in zip(records, values, strict=True) if math.isfinite(pair[1])]
    drawn = [pairs[place] for place in downsample([value for _, value in pairs], history.max_points)]
    return {
        "name": name,
        "style": style,
        "color": color,
        "x": {axis: [_digits(history.place(r["step"], axis), 8) for r, _ in drawn] for axis in AXES},
        "y": [_digits(value, _DIGITS) for _, value in drawn],
    }


def _digits(value: float, places: int) -> float | int:
    rounded = float(f"{value:.{places}g}")
    return int(rounded) if rounded.is_integer() else rounded


def chart(title: str, unit: str, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Lines under one title, without those that have no points."""
    return {"title": title, "unit": unit, "series": [line for line in lines if line["y"]]}


def average_series(
    history: RunHistory, name: str, field: str, value: Callable[[Record], float], color: int = 0
) -> dict[str, Any]:
    """The exponential average of a figure of the steps, of those that have the field."""
    records = [record for record in history.averaged_steps if field in record]
    return series(
        history, name, "line", records, smooth(list(map(value, records)), history.steps_per_record), color
    )


def _memory_by_phase(history: RunHistory) -> list[dict[str, Any]]:
    peaks: dict[str, list[tuple[Record, float]]] = {}
    for record in history.events("memory"):
        for phase, found in record.get("phases", {}).items():
            peaks.setdefault(phase, []).append((record, found.get("peak_bytes", found["held_bytes"]) / 2**30))
    return [
        series(history, phase, "dots", [record for record, _ in pairs], [peak for _, peak in pairs], color)
        for color, (phase, pairs) in enumerate(peaks.items())
    ]


def run_charts(history: RunHistory) -> list[dict[str, Any]]:
    """The charts of one run: those whose figures its log has."""
    steps, validations = history.steps, history.validations
    problems = [record for record in history.events("cpp_evaluation") if "pass@1" in record]
    rollouts = history.events("rollouts")

    def raw_and_average(field: str, value: Callable[[Record], float]) -> list[dict[str, Any]]:
        records = [record for record in steps if field in record]
        raw = series(history, "each step", "faint", records, list(map(value, records)))
        return [raw, average_series(history, "average", field, value)]

    def of_steps(field: str, factor: float = 1.0) -> list[dict[str, Any]]:
        return raw_and_average(field, lambda record: factor * record[field])

    def waited(record: Record) -> float:
        return 100 * record["data_seconds"] / max(record["step_seconds"], 1e-9)

    def of_rollouts(field: str, factor: float = 1.0) -> list[dict[str, Any]]:
        values = [factor * record[field] for record in rollouts]
        return [
            series(history, "each step", "faint", rollouts, values),
            series(history, "average", "line", rollouts, smooth(values)),
        ]

    def line(name: str, field: str, factor: float) -> list[dict[str, Any]]:
        return [series(history, name, "line", steps, [factor * record[field] for record in steps])]

    def dots(name: str, records: list[Record], field: str, factor: float = 1.0, color: int = 1) -> Any:
        return series(history, name, "dots", records, [factor * r[field] for r in records], color)

    charts = [
        chart("Right answers", "% of those sampled", of_rollouts("solved", 100)),
        chart("Entropy of answers", "nats per token", of_rollouts("entropy")),
        chart("Engine and trainer", "importance weight, mean", of_rollouts("importance_weight")),
        chart("Validation", "bits per byte", [dots("validation", validations, "bits_per_byte")]),
        chart("Loss", "nats per token", [*of_steps("loss"), dots("validation", validations, "loss")]),
        chart(
            "C++ problems",
            "% of them",
            [
                dots("compile", problems, "compile_rate", 100, color=0),
                dots("pass@1", problems, "pass@1", 100),
            ],
        ),
        chart("Loss of further tokens", "nats per token", of_steps("multi_token_loss")),
        chart("Loss of the indexer", "nats per token", of_steps("indexer_loss")),
        chart("Throughput", "tokens per second", of_steps("tokens_per_second")),
        chart("Share of the peak rate", "MFU, %", of_steps("mfu", 100)),
        chart("Gradient norm", "", of_steps("gradient_norm")),
        chart("Learning rate", "% of its peak", line("rate", "lr_multiplier", 100)),
        chart("Waiting for data", "% of the step", raw_and_average("data_seconds", waited)),
        chart("Peak memory", "GiB, so far in each session", line("peak", "peak_memory_bytes", 2**-30)),
        chart("Memory by phase", "GiB, at most", _memory_by_phase(history)),
    ]
    return [each for each in charts if each["series"]]
