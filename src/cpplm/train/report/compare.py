"""Runs side by side: their figures, the settings in which they differ, and their curves in one frame."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.run_log import LOG
from cpplm.core.storage import Storage
from cpplm.core.text import duration, short_number
from cpplm.train.report.curves import average_series, chart, series, smooth
from cpplm.train.report.html import render_page
from cpplm.train.report.log_reader import Axis, RunHistory, defaults, headline_figures

_NOT_COMPARED = frozenset({"out", "run_name", "wandb_project", "tensorboard"})
"""Settings that name a run or say where its figures go."""


@dataclass(frozen=True)
class Figure:
    """A row of the table: how a figure is named and written, and whether less or more of it is better.

    With `of_data` that holds only between runs on the same data.
    """

    name: str
    field: str
    text: Callable[[Any], str]
    best: Callable[[list[Any]], Any] | None = None
    of_data: bool = False


FIGURES = (
    Figure("state", "state", str),
    Figure("bits per byte", "bits_per_byte", "{:.4f}".format, min, of_data=True),
    Figure("best bits per byte", "best_bits_per_byte", "{:.4f}".format, min, of_data=True),
    Figure("at step", "best_step", "{:,}".format),
    Figure("training loss", "loss", "{:.4f}".format, min, of_data=True),
    Figure("parameters", "parameters", short_number),
    Figure("steps", "step", "{:,}".format),
    Figure("tokens", "tokens", short_number),
    Figure("training time", "seconds", duration),
    Figure("tokens per second", "tokens_per_second", "{:,.0f}".format, max),
    Figure("MFU", "mfu", "{:.1%}".format, max),
    Figure("waiting for data", "data_wait", "{:.1%}".format, min),
    Figure("peak memory", "peak_memory_bytes", lambda size: f"{size / 2**30:.2f} GiB", min),
    Figure("sessions", "sessions", str),
)


@dataclass(frozen=True)
class Row:
    """One figure of every run; `best` are the columns that have its best value."""

    name: str
    cells: list[str]
    best: list[int]


@dataclass(frozen=True)
class Comparison:
    """The outcome of `cpplm runs compare`.

    `common` is the lowest bits per byte that every run reached, None where one measured nothing or not all
    were measured on the same text (`same_text`);
    `differences` are values by run for every setting in which not all agree. A run that is older than a
    setting counts as having its default.
    """

    names: list[str]
    runs: list[dict[str, Any]]
    common: float | None
    differences: dict[str, list[Any]]
    same_text: bool

    @property
    def remark(self) -> str:
        """A warning to read before figures are compared, or nothing."""
        if self.same_text:
            return ""
        return "The runs were validated on different texts: bits per byte and losses cannot be compared."

    def rows(self) -> list[Row]:
        """The table of figures."""
        extra = []
        if self.common is not None:
            extra.append(Figure(f"time to {self.common:.4f}", "seconds_to_common", duration, min))
            extra.append(Figure(f"tokens to {self.common:.4f}", "tokens_to_common", short_number, min))
        return [row for figure in (*FIGURES[:4], *extra, *FIGURES[4:]) if (row := self._row(figure))]

    def _row(self, figure: Figure) -> Row | None:
        values = [run.get(figure.field) for run in self.runs]
        known = [value for value in values if value is not None]
        if not known:
            return None
        cells = ["" if value is None else figure.text(value) for value in values]
        comparable = len(set(cells)) > 1 and (self.same_text or not figure.of_data)
        best = figure.text(figure.best(known)) if figure.best and comparable else None
        return Row(figure.name, cells, [column for column, cell in enumerate(cells) if cell == best])


def read_runs(runs: Sequence[str]) -> list[RunHistory]:
    """The logs of at least two runs.

    Raises:
        UserError: fewer than two, the same one twice, or one that is not the folder of a run.
    """
    folders = [Path(run).expanduser().resolve() for run in runs]
    if len(folders) < 2:
        raise UserError("one run alone cannot be compared", fix="Name two runs or more.")
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"{runs[number]} is named twice", fix="Name each run once.")
    return [RunHistory(run) for run in runs]


def compare(histories: Sequence[RunHistory]) -> Comparison:
    """Lay runs side by side."""
    figures = [headline_figures(history) for history in histories]
    reached: list[Any] = [run.get("best_bits_per_byte") for run in figures]
    same_text = all(_same_text(histories[0], history) for history in histories[1:])
    common = max(reached) if same_text and None not in reached else None
    if common is not None:
        for run, history in zip(figures, histories, strict=True):
            run["seconds_to_common"] = _first_reach(history, common, "seconds")
            run["tokens_to_common"] = _first_reach(history, common, "tokens")
    settings = [defaults() | history.settings for history in histories]
    names = {name for each in settings for name in each if name not in _NOT_COMPARED}
    values = {name: [each.get(name) for each in settings] for name in sorted(names)}
    return Comparison(
        names=_distinct(histories),
        runs=figures,
        common=common,
        differences={name: each for name, each in values.items() if any(v != each[0] for v in each)},
        same_text=same_text,
    )


def _same_text(one: RunHistory, other: RunHistory) -> bool:
    """True if both were validated on the same text: by its hash or, where a log has none, its place."""
    hashes = [each.sessions[-1].record.get("validation_text", {}).get("sha256") for each in (one, other)]
    if None in hashes:
        return bool(one.settings.get("data_dir", [])[:1] == other.settings.get("data_dir", [])[:1])
    return hashes[0] == hashes[1]


def _first_reach(history: RunHistory, bits_per_byte: float, axis: Axis) -> float:
    """The place where a run first was that good, on a straight line between its validations."""
    before = None
    for record in history.validations:
        here, value = history.place(record["step"], axis), record["bits_per_byte"]
        if value <= bits_per_byte:
            if before is None:
                return here
            share = (before[1] - bits_per_byte) / (before[1] - value)
            return before[0] + share * (here - before[0])
        before = here, value
    raise ValueError(f"{history.name} never reached {bits_per_byte} bits per byte")


def _distinct(histories: Sequence[RunHistory]) -> list[str]:
    """Names of the runs; the folders, where two runs have the same name."""
    names = [history.name for history in histories]
    return names if len(set(names)) == len(names) else [str(history.folder) for history in histories]


def write_comparison(histories: Sequence[RunHistory], comparison: Comparison, out: Path) -> None:
    """Write the comparison as a page.

    Raises:
        UserError: the page cannot be written.
    """
    page = {"comparison": comparison, "charts": comparison_charts(histories, comparison.names)}
    out = out.expanduser()
    Storage(out.parent, create=True).write(out.name, render_page("compare.html.jinja", page).encode())


def comparison_charts(histories: Sequence[RunHistory], names: Sequence[str]) -> list[dict[str, Any]]:
    """The charts of several runs, each with a line for every run."""
    numbered = [(number, *pair) for number, pair in enumerate(zip(names, histories, strict=True))]

    def averages(field: str) -> list[dict[str, Any]]:
        return [
            average_series(history, name, field, itemgetter(field), number)
            for number, name, history in numbered
        ]

    def bits(history: RunHistory) -> list[float]:
        return [record["bits_per_byte"] for record in history.validations]

    validations = [
        series(history, name, "dots", history.validations, bits(history), number)
        for number, name, history in numbered
    ]
    right = [
        series(history, name, "line", answers, smooth([100 * record["solved"] for record in answers]), number)
        for number, name, history in numbered
        if (answers := history.events("rollouts"))
    ]
    charts = [
        chart("Right answers", "% of those sampled, averaged", right),
        chart("Validation", "bits per byte", validations),
        chart("Training loss", "nats per token, averaged", averages("loss")),
        chart("Throughput", "tokens per second, averaged", averages("tokens_per_second")),
        chart("Gradient norm", "averaged", averages("gradient_norm")),
    ]
    return [each for each in charts if each["series"]]


def find_runs(folder: str | Path) -> Iterator[Path]:
    """Run folders below `folder`, itself included, by name. What lies inside a run is not searched.

    Raises:
        UserError: no such folder.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"no such folder: {root}")
    waiting = [root]
    while waiting:
        here = waiting.pop()
        with contextlib.suppress(OSError):  # it is gone, or nobody may look
            if (here / LOG).is_file():
                yield here
            else:
                below = [path for path in here.iterdir() if path.is_dir() and not path.is_symlink()]
                waiting += sorted(below, reverse=True)
