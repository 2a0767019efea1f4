"""The page of a run: one HTML file that opens offline, with curves, figures, samples, sessions and settings.

It is made from the files in the run folder alone (`log.jsonl`, `evaluation.json`, `compression.json`,
`samples.json`), so it can be made at any time, also while the run is going on. Text that a model wrote is
escaped, and the page's own policy lets no script run but ours, nor anything be loaded. Curves are drawn by a
script in the page: a plotting library would be a dependency for this alone, and its pictures cannot be read
or zoomed.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from cpplm import __version__
from cpplm.core.html_page import render
from cpplm.core.settings import flatten
from cpplm.core.storage import Storage
from cpplm.core.text import duration, short_number
from cpplm.train.checkpoint.format import step_folder as checkpoint_folder
from cpplm.train.memory_log import MEMORY_PARTS
from cpplm.train.report.curves import run_charts
from cpplm.train.report.html_evaluation import evaluation_tiles, evaluation_view
from cpplm.train.report.html_rollouts import rollouts_view
from cpplm.train.report.log_reader import AXES, Record, RunHistory, Session, defaults, headline_figures
from cpplm.train.report.machine_timeline import machines_view

PAGE = "page.html"
COMPRESSION = "compression.json"
"""File of `cpplm compress compare`'s results, in the folder of a run."""
MOST_SAMPLES = 60
MOST_DETAILS = 200
MOST_CHECKPOINTS = 50


def write_page(run: str | Path, out: Path | None = None) -> Path:
    """Write the page of a run and return its path.

    Args:
        run: folder of the run.
        out: the file; None for `page.html` in the run folder or, where that is read-only, for a file named
            after the run in the present folder.

    Raises:
        UserError: not a run folder, nothing was trained yet, or the file cannot be written.
    """
    history = RunHistory(run)
    if out is None:
        writable = os.access(history.folder, os.W_OK)
        out = history.folder / PAGE if writable else Path(f"{history.name}.html")
    out = out.expanduser()
    html = render_page("page.html.jinja", collect_page_data(history))
    Storage(out.parent, create=True).write(out.name, html.encode())
    return out


def collect_page_data(history: RunHistory) -> dict[str, Any]:
    """Read everything a run folder has to show, by the names that the template uses."""
    storage = Storage(history.folder)
    evaluation = storage.read_json("evaluation.json") if storage.exists("evaluation.json") else {}
    samples = history.events("samples")
    if storage.exists("samples.json"):
        samples = [*samples, storage.read_json("samples.json")]
    shown = evenly_spaced(samples, MOST_SAMPLES)
    chosen, as_default = _settings(history)
    session = history.sessions[-1]
    return {
        "name": history.name,
        "state": session.ended,
        "steps_trained": session.last_step,
        "session": session.record,
        "tiles": headline_tiles(history, evaluation),
        "charts": run_charts(history),
        "marks": [session_mark(history, later) for later in history.sessions[1:]],
        "validations": history.validations,
        "validation_overlap": _validation_overlap(session.record.get("validation_text", {})),
        "samples": shown[::-1],
        "samples_left_out": len(samples) - len(shown),
        "rollouts": rollouts_view(history),
        "most_samples": MOST_SAMPLES,
        "evaluation": evaluation_view(evaluation),
        "compression": storage.read_json(COMPRESSION) if storage.exists(COMPRESSION) else {},
        "evaluations": history.events("cpp_evaluation"),
        "machines": machines_view(history.folder),
        "sessions": history.sessions,
        "checkpoints": _checkpoints(history),
        "profiles": history.events("profile"),
        "memory": _memory(history),
        "memory_phases": _memory_phases(history),
        "chosen": chosen,
        "as_default": as_default,
        "model": _model(session.record),
        "most_details": MOST_DETAILS,
        "most_checkpoints": MOST_CHECKPOINTS,
    }


def evenly_spaced(records: list[Record], limit: int) -> list[Record]:
    """At most that many of the records, evenly spread, the first and the last among them."""
    if len(records) <= limit:
        return records
    return [records[number * (len(records) - 1) // (limit - 1)] for number in range(limit)]


def headline_tiles(history: RunHistory, evaluation: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, remark)."""
    figures, tiles = headline_figures(history), []
    measured = evaluation.get("bpb") or (history.validations[-1] if history.validations else None)
    if measured:
        first = history.validations[:1]
        untrained = f"untrained: {first[0]['bits_per_byte']:.3f}" if first and first[0]["step"] == 0 else ""
        tiles.append(("validation bits per byte", f"{measured['bits_per_byte']:.3f}", untrained))
    tiles += evaluation_tiles(evaluation)
    parameters = history.sessions[-1].record["parameters"]
    tiles.append(
        (
            "parameters",
            short_number(parameters["total"]),
            f"{short_number(parameters['matrices'])} in the layers",
        )
    )
    if "step" in figures:
        processor = history.sessions[-1].record["environment"]["processor"]
        wait = f"{figures['data_wait']:.1%} of the time waiting for data"
        clock = duration(figures["wall_seconds"])
        tiles += [
            ("tokens trained on", short_number(figures["tokens"]), f"{figures['step']:,} steps"),
            ("tokens per second", f"{figures['tokens_per_second']:,.0f}", wait),
            ("training time", duration(figures["seconds"]), f"{clock} on the clock"),
            ("peak memory", _gib(figures["peak_memory_bytes"]), processor),
        ]
        if "mfu" in figures:
            tiles.append(("MFU", f"{figures['mfu']:.1%}", "of the device's peak rate"))
        left = history.steps[-1].get("eta_seconds", 0)
        if left and history.sessions[-1].ended == "running":
            tiles.append(("time left", duration(left), f"{history.steps[-1]['progress']:.1%} done"))
    return tiles


def _settings(history: RunHistory) -> tuple[list[tuple[str, Any, str]], dict[str, Any]]:
    """Settings that differ from the defaults, as (name, value, default), and all the others by name."""
    default, chosen, same = defaults(), [], {}
    for name, value in sorted(history.settings.items()):
        if name in default and value == default[name]:
            same[name] = value
        else:
            chosen.append((name, value, f"default {default[name]}" if name in default else ""))
    return chosen, same


def _validation_overlap(record: Record) -> str:
    """A sentence on the overlap of validation and training text, as the corpus recorded it; or nothing."""
    if not record.get("projects_in_train"):
        return ""
    return (
        f"Validation text is from projects that were trained on ({record['projects_in_train']:,} of "
        f"{record['projects']:,}); {record['repeated_share']:.0%} of the bytes in its lines of "
        f"{record['min_line_bytes']} bytes or more also stand in training text."
    )


def session_mark(history: RunHistory, session: Session) -> dict[str, Any]:
    """The beginning of a later session, on every axis."""
    step = session.record["step"]
    label = f"{_local_time(session.record['time'])}: went on from step {step:,}"
    return {"label": label, **{axis: history.place(step, axis) for axis in AXES}}


def _checkpoints(history: RunHistory) -> list[dict[str, Any]]:
    """Newest first. Whether one is still there is known only where it lies in the run folder."""
    local = not history.settings["checkpoint_dir"]
    rows = []
    for record in reversed(history.events("checkpoint")):
        there = (history.folder / "checkpoints" / checkpoint_folder(record["step"])).is_dir()
        kept = "" if not local else "kept" if there else "deleted since"
        rows.append({**record, "kept": kept})
    return rows


def _memory(history: RunHistory) -> dict[str, str]:
    """The newest measurement, the parts of the peak as shares of it."""
    records = history.events("memory")
    if not records:
        return {}
    newest = records[-1]
    names = {
        "weights_bytes": "weights",
        "gradients_bytes": "gradients",
        "optimizer_bytes": "optimizer state",
        "rest_bytes": "activations and all else",
        "held_bytes": "held between steps",
        "total_bytes": "of the device",
        "logits_bytes": "all logits of a pass would take",
        "attention_bytes": "all attention scores of a layer would take",
    }
    peak = newest["peak_bytes"]
    rows = {name: _gib(newest[key]) for key, name in names.items() if key in newest}
    for key in MEMORY_PARTS:
        if key in newest:
            rows[names[key]] += f" ({newest[key] / peak:.0%})"
    graphs = {"compiled graphs": str(newest["compiled_graphs"])} if "compiled_graphs" in newest else {}
    return {"peak": _gib(peak), **rows, **graphs}


def _memory_phases(history: RunHistory) -> list[dict[str, str]]:
    """The newest measurement of each phase, and that of the first step, which compiles."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in history.events("memory"):
        for phase, found in record.get("phases", {}).items():
            when = "first step" if record["when"] == "warmup" else f"step {record['step']:,}"
            mib = {name: f"{size / 2**20:,.0f} MiB" for name, size in found.items()}
            rows[phase, record["when"]] = {"phase": phase, "when": when, "peak_bytes": "", **mib}
    return list(rows.values())


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _model(session: Record) -> dict[str, Any]:
    parameters = {f"parameters: {name}": count for name, count in session["parameters"].items()}
    return {
        **flatten(session["config"]),
        **parameters,
        "training FLOPs per token": session["flops_per_token"],
    }


def _local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def render_page(template: str, page: dict[str, Any]) -> str:
    """A page as HTML; its policy allows the scripts that carry the nonce."""
    stamp: dict[str, Any] = {"version": __version__, "now": time.time(), "nonce": secrets.token_hex(16)}
    return render("cpplm.train.report", template, {"local_time": _local_time}, page=page, **stamp)
