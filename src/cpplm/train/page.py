"""The page of a run: one HTML file that opens offline, with curves, figures, samples and settings.

It is made from the files in the run folder alone (`log.jsonl`, `evaluation.json`, `samples.json`), so it can
be made at any time, also while the run is going on. Text that a model wrote is escaped.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from cpplm import __version__
from cpplm.core.errors import UserError
from cpplm.core.runlog import LOG, read_run_log
from cpplm.core.storage import Storage
from cpplm.train.pretrain import run_folder

PAGE = "page.html"
Series = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class PageData:
    """What the template shows."""

    name: str
    version: str
    made: str
    session: dict[str, Any]
    settings: dict[str, Any]
    tiles: list[tuple[str, str, str]]
    curves: list[tuple[str, str]]
    samples: dict[str, Any]
    problems: dict[str, Any]
    steps_trained: int


def write_page(run: str | Path) -> Path:
    """Write `page.html` into the run folder and return its path.

    Raises:
        UserError: not a run folder, or nothing was trained yet.
    """
    folder = run_folder(run)
    html = render(collect(folder))
    Storage(folder).write(PAGE, html.encode())
    return folder / PAGE


def collect(folder: Path) -> PageData:
    """Read everything a run folder has to show."""
    records = read_run_log(folder / LOG)
    by_event: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_event.setdefault(record["event"], []).append(record)
    if "session" not in by_event:
        raise UserError(f"{folder / LOG} holds no training session", fix="Run 'cpplm train' first.")
    storage = Storage(folder)
    evaluation = storage.read_json("evaluation.json") if storage.exists("evaluation.json") else {}
    samples = storage.read_json("samples.json") if storage.exists("samples.json") else {}
    if not samples and "samples" in by_event:
        samples = by_event["samples"][-1]
    steps, validations = by_event.get("step", []), by_event.get("validation", [])
    return PageData(
        name=folder.resolve().name if folder.resolve().name != "run" else folder.resolve().parent.name,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        session=by_event["session"][-1],
        settings=_flat(by_event["session"][-1]["settings"]),
        tiles=_tiles(by_event["session"][-1], steps, validations, evaluation),
        curves=_curves(steps, validations),
        samples=samples,
        problems=evaluation.get("cpp", {}),
        steps_trained=steps[-1]["step"] if steps else 0,
    )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by flag, those of nested groups beside the others."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def _tiles(
    session: dict[str, Any],
    steps: list[dict[str, Any]],
    validations: list[dict[str, Any]],
    evaluation: dict[str, Any],
) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, remark)."""
    tiles = []
    measured = evaluation.get("bpb") or (validations[-1] if validations else None)
    if measured:
        untrained = f"untrained: {validations[0]['bits_per_byte']:.3f}" if validations else ""
        tiles.append(("validation bits per byte", f"{measured['bits_per_byte']:.3f}", untrained))
    if cpp := evaluation.get("cpp"):
        remark = f"of {cpp['problems']} C++ problems"
        tiles.append(("compile rate", f"{cpp['compile_rate']:.1%}", remark))
        tiles.append(("pass@1", f"{cpp['pass@1']:.1%}", remark))
    parameters = session["parameters"]
    tiles.append(
        ("parameters", _short(parameters["total"]), f"{_short(parameters['matrices'])} in the layers")
    )
    if steps:
        last = steps[-1]
        rates = sorted(record["tokens_per_second"] for record in steps)
        waited = sum(r["data_seconds"] for r in steps) / sum(r["step_seconds"] for r in steps)
        tiles.append(("tokens trained on", _short(last["tokens"]), f"{last['step']:,} steps"))
        speed = f"{rates[len(rates) // 2]:,.0f}"
        tiles.append(("tokens per second", speed, f"{waited:.1%} of the time waiting for data"))
        tiles.append(
            ("training time", f"{last['seconds'] / 60:.1f} min", session["environment"]["processor"])
        )
        tiles.append(
            ("peak memory", f"{max(r['peak_memory_bytes'] for r in steps) / 2**30:.2f} GiB", "of the trainer")
        )
    return tiles


def _short(number: float) -> str:
    return EngFormatter(places=1, sep="")(number)


def _curves(steps: list[dict[str, Any]], validations: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(title, svg) of each curve that has points."""
    curves = []
    if steps:
        train = ([r["step"] for r in steps], [r["loss"] for r in steps])
        series = {"training": train, "smoothed": (train[0], _smooth(train[1]))}
        if validations:
            series["validation"] = ([r["step"] for r in validations], [r["loss"] for r in validations])
        curves.append(("Loss (nats per token)", plot(series, "step")))
    if validations:
        bits = ([r["step"] for r in validations], [r["bits_per_byte"] for r in validations])
        curves.append(("Validation (bits per byte)", plot({"validation": bits}, "step")))
    if steps:
        numbers = [r["step"] for r in steps]
        speed = (numbers, [r["tokens_per_second"] for r in steps])
        curves.append(("Throughput (tokens per second)", plot({"smoothed": speed}, "step")))
        rate = (numbers, [r["lr_multiplier"] for r in steps])
        curves.append(("Learning rate (share of its peak)", plot({"smoothed": rate}, "step")))
    return curves


def _smooth(values: list[float], keep: float = 0.95) -> list[float]:
    """Exponential average, without the pull of its first value."""
    smooth, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smooth.append(total / weight)
    return smooth


STYLES: dict[str, dict[str, Any]] = {
    "training": {"color": "#8aa4c8", "linewidth": 0.7, "alpha": 0.7},
    "smoothed": {"color": "#2f6fbf", "linewidth": 1.6},
    "validation": {"color": "#d9772b", "linewidth": 1.6, "marker": "o", "markersize": 4},
}


def plot(series: Mapping[str, Series], x_label: str) -> str:
    """Lines as an SVG element; grey text that reads on light and on dark pages."""
    grey = "#7d8590"
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cpplm", "font.family": "sans-serif"}):
        figure = Figure(figsize=(6.2, 3.1), layout="constrained")
        axes = figure.add_subplot()
        for name, (x, y) in series.items():
            axes.plot(x, y, label=name, **STYLES[name])
        axes.set_xlabel(x_label, color=grey)
        axes.tick_params(colors=grey)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(
            EngFormatter(sep="") if axes.get_ylim()[1] > 1000 else axes.yaxis.get_major_formatter()
        )
        axes.grid(color=grey, alpha=0.2)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(grey)
        if len(series) > 1:
            axes.legend(frameon=False, labelcolor=grey)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def render(data: PageData) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cpplm.train", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.jinja").render(page=data)
