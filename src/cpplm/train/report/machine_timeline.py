"""The machines of a run over time: how long each recovery took, and a picture for the run page.

Events, as a watcher writes them (`cpplm.cloud.watch`):

| event | |
|---|---|
| watcher | one begins to act, or has ended |
| create, refused | a machine is asked for; the answer is no |
| node | a machine has another state, in `state` |
| heartbeat | the trainer does something else, in `state` |
| first_step | the first new step of an attempt is made |
| checkpoint | a checkpoint is committed |
| delete, gone | a machine is being deleted, in `reason` why; it is not there any more |
| fault | a request failed |
| finish | the run needs no machine any more |
"""

from __future__ import annotations

import html
import itertools
import json
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage

TIMELINE = "watcher/timeline.jsonl"
Event = dict[str, Any]
PARTS = ("deleted", "created", "set up", "first step")
_COLORS = {
    "asked for": "#c9c9c9",
    "setup": "#e8b04a",
    "compiling": "#b07cc6",
    "training": "#4a90d9",
    "saving": "#3aa675",
}
_BAD = ("preempted", "suspended", "failed", "stopped")


def read_timeline(run: Storage) -> list[Event]:
    """All events of RUN/watcher/timeline.jsonl, oldest first.

    Raises:
        UserError: the bucket cannot be read, or something else lies there.
    """
    if not run.exists(TIMELINE):
        return []
    try:
        return [json.loads(line) for line in run.read(TIMELINE).splitlines()]
    except ValueError as error:
        raise UserError(f"{run.path(TIMELINE)} is no time line: {error}", fix="Delete it.") from error


def machines_view(folder: Path) -> dict[str, Any]:
    """The run page's picture of the machines; empty where there were none."""
    events = read_timeline(Storage(folder))
    return {"picture": draw(events), "parts": PARTS, "recoveries": recoveries(events)}


def recoveries(events: list[Event]) -> list[dict[str, float]]:
    """For each machine that was lost and whose successor made a step: seconds of each part.

    "deleted" is from the loss seen until it is gone, "created" until the next one is ready, "set up" until
    its trainer begins to compile, "first step" until it has made a new step.
    """
    found, marks = list[dict[str, float]](), dict[str, float]()
    lost: Event | None = None
    for event in events:
        kind, at = event["event"], float(event["time"])
        later = lost is None or event.get("attempt", 0) > lost.get("attempt", 0)
        if later and (kind == "delete" or (kind == "node" and event["state"] in _BAD)):
            lost, marks = event, {"seen": at}
        elif lost is None or not later:
            if kind == "gone":
                marks.setdefault("deleted", at)
        elif kind == "node" and event["state"] == "ready":
            marks["created"] = at
        elif kind == "heartbeat" and event["state"] in ("compiling", "training"):
            marks.setdefault("set up", at)
        elif kind == "first_step":
            found.append(_parts(marks, at))
            lost = None
    return found


def _parts(marks: dict[str, float], end: float) -> dict[str, float]:
    times = [marks["seen"]]
    for part in PARTS[:-1]:
        times.append(max(times[-1], marks.get(part, times[-1])))
    times.append(end)
    parts = {
        part: round(after - before, 3)
        for part, (before, after) in zip(PARTS, itertools.pairwise(times), strict=True)
    }
    return {"seen": marks["seen"], **parts, "seconds": round(end - marks["seen"], 3)}


def draw(events: list[Event], width: int = 860) -> str:
    """An SVG picture, a row for each attempt; empty without events."""
    if not events:
        return ""
    begin, end = float(events[0]["time"]), float(events[-1]["time"])
    scale = (width - 90) / max(end - begin, 1e-9)
    attempts = sorted({event["attempt"] for event in events if event.get("attempt")})
    rows = {attempt: number for number, attempt in enumerate(attempts)}
    height = 24 * len(rows) + 44
    shapes = []
    for attempt, row in rows.items():
        y = 24 * row + 6
        shapes.append(f'<text x="0" y="{y + 13}">attempt {attempt}</text>')
        for name, start, stop, title in _spans([e for e in events if e.get("attempt") == attempt], end):
            x, wide = 80 + (start - begin) * scale, max(1.0, (stop - start) * scale)
            label = html.escape(f"{title}: {stop - start:.1f} s")
            shapes.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="16" fill="{_COLORS[name]}">'
                f"<title>{label}</title></rect>"
            )
    y = 24 * len(rows) + 14
    shapes.append(f'<text x="80" y="{y + 4}">0 s</text>')
    shapes.append(f'<text x="{width - 10}" y="{y + 4}" text-anchor="end">{end - begin:.0f} s</text>')
    for number, (name, color) in enumerate(_COLORS.items()):
        x = 80 + 110 * number
        shapes.append(f'<rect x="{x}" y="{y + 12}" width="12" height="12" fill="{color}"/>')
        shapes.append(f'<text x="{x + 18}" y="{y + 22}">{name}</text>')
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-size="12" role="img" '
        f'fill="currentColor">{"".join(shapes)}</svg>'
    )


def _spans(events: list[Event], end: float) -> list[tuple[str, float, float, str]]:
    """Spans of an attempt: (color, begin, end, title)."""
    spans: list[tuple[str, float, float, str]] = []
    current: tuple[str, float, str] | None = None
    for event in events:
        kind, at = event["event"], float(event["time"])
        name = {"create": "asked for", "heartbeat": event.get("state", "")}.get(kind)
        over = kind in ("gone", "refused", "delete") or (kind == "node" and event["state"] in _BAD)
        if not over and name not in _COLORS:
            continue
        if current is not None:
            spans.append((current[0], current[1], at, current[2]))
        current = None if over or name is None else (name, at, name)
    if current is not None:
        spans.append((current[0], current[1], end, current[2]))
    return spans
