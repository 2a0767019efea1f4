"""All runs below a folder while they go on: a row of each, and curves of those that somebody chose.

A clock counts the changes, so that who knows its value at his last look is told what is new since.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cpplm.core.errors import UserError
from cpplm.core.heartbeat import HEARTBEAT
from cpplm.core.run_log import LOG
from cpplm.core.text import duration, short_number
from cpplm.train.report.compare import compare, comparison_charts, find_runs
from cpplm.train.report.curves import run_charts
from cpplm.train.report.html import headline_tiles, session_mark
from cpplm.train.report.log_reader import headline_figures, is_held, run_name
from cpplm.train.report.log_tail import LogTail, ThinnedHistory

State = Literal["training", "finished", "stopped", "failed", "reading", "unreadable"]
_SILENT_SECONDS = 30.0  # without a record or a heartbeat, after which a run's process is looked for
_SILENT_STEPS = 5  # or as long as so many steps take
_LOOK_SECONDS = 5.0  # between two searches for runs, at least
_SHARE = 0.05  # of the time that searches for runs may take
_SLICE_SECONDS = 0.5  # that reading may take before what was read is shown
_MAX_TEXT = 500  # characters of a setting, or of a reason
_KEPT_VIEWS = 8  # of curves, for several who look at the same


@dataclass
class WatchedRun:
    """A run that was found."""

    id: str
    """Its folder relative to that of all runs."""
    folder: Path
    tail: LogTail
    row: dict[str, Any] = field(default_factory=dict)
    """Its row in the list of the runs."""
    changed: int = 0
    """The clock at its last change."""
    patience: float = _SILENT_SECONDS
    """Seconds without a word after which it may have ended."""
    polled: float = -math.inf
    """Time of the last look at it, by the monotonic clock."""
    sought: float = -math.inf
    """Time of the last search for its process."""

    @property
    def is_open(self) -> bool:
        """Its log has no end yet."""
        return self.row.get("end") == "running"

    def history(self) -> ThinnedHistory:
        """History of the records read so far."""
        return self.tail.history(self.folder, lambda _: self.row.get("state") in ("training", "reading"))


class RunWatcher:
    """Reads logs as they grow. `poll` is for one thread, everything else for any."""

    def __init__(self, root: Path) -> None:
        """Nothing is read yet."""
        self.root = root.expanduser().resolve()
        self._lock = threading.Lock()
        self._runs: dict[str, WatchedRun] = {}
        self._clock = self._listed = 0
        self._next_look = -math.inf
        self._views = lru_cache(maxsize=_KEPT_VIEWS)(self._view)

    def poll(self) -> tuple[bool, bool]:
        """Look for runs, and read what was appended; whether anything is new, and whether there is more."""
        before, begin = self._clock, time.monotonic()
        if begin >= self._next_look:
            self._look()
            now = time.monotonic()
            self._next_look = now + max(_LOOK_SECONDS, (now - begin) / _SHARE)
        more = False
        # Each has its turn, at first those that were written last.
        turns = sorted(self._runs.values(), key=lambda run: (run.polled, -run.tail.modified))
        for run in turns:
            with self._lock:
                self._read(run)
            run.polled = time.monotonic()
            more |= run.tail.is_behind
            if run.polled - begin > _SLICE_SECONDS and run is not turns[-1]:
                return self._clock != before, True
        return self._clock != before, more

    def _look(self) -> None:
        try:
            found = {folder.relative_to(self.root).as_posix(): folder for folder in find_runs(self.root)}
        except (UserError, OSError):  # the folder itself is gone, for a while perhaps
            found = {}
        with self._lock:
            gone, new = self._runs.keys() - found.keys(), found.keys() - self._runs.keys()
            for name in gone:
                del self._runs[name]
            for name in sorted(new):
                run = WatchedRun(name, found[name], LogTail(found[name] / LOG))
                run.tail.modified = _modified(run.tail.path)
                run.row = {"id": name, "name": run_name(run.folder), "state": "reading", "kind": ""}
                self._runs[name] = run
                self._touch(run)
            if gone or new:
                self._listed = self._clock = self._clock + 1

    def _touch(self, run: WatchedRun) -> None:
        self._clock += 1
        run.changed = self._clock

    def _read(self, run: WatchedRun) -> None:
        try:
            if run.tail.poll():
                row = self._row(run)
            elif run.is_open:
                row = run.row | {"state": self._state(run)}
            else:
                return
        except (OSError, UserError) as error:  # it may be gone, which the next look for runs will find
            row = _unreadable(run, str(error))
        except Exception as error:  # a log may hold anything
            row = _unreadable(run, f"no log of a run ({error!r})"[:_MAX_TEXT])
        if row != run.row:
            run.row = row
            self._touch(run)

    def _row(self, run: WatchedRun) -> dict[str, Any]:
        if run.tail.is_behind:
            return run.row
        run.row = run.row | {"state": "training"}
        history = run.history()
        figures, session = headline_figures(history), history.sessions[-1]
        last = history.steps[-1] if history.steps else {}
        settings = history.settings
        bits = figures.get("bits_per_byte")
        left = last.get("eta_seconds") or 0
        run.patience = max(_SILENT_SECONDS, _SILENT_STEPS * float(last.get("step_seconds", 0)))
        run.row = {
            "id": run.id,
            "name": history.name,
            "kind": "qat" if settings.get("quantization.quantize") else str(settings.get("stage", "")),
            "end": session.ended[:_MAX_TEXT],
            "began": history.sessions[0].record["time"],
            "step": f"{figures.get('step', 0):,}",
            "progress": min(1.0, max(0.0, float(last.get("progress", 0)))),
            "bits_per_byte": "" if bits is None else f"{bits:.4f}",
            "loss": f"{figures['loss']:.4f}" if "loss" in figures else "",
            "tokens": short_number(figures["tokens"]) if "tokens" in figures else "",
            "tokens_per_second": f"{figures['tokens_per_second']:,.0f}" if last else "",
            "time": duration(figures.get("seconds", 0)),
            "left": duration(left) if left and session.ended == "running" else "",
        }
        return run.row | {"state": self._state(run)}

    def _state(self, run: WatchedRun) -> State:
        """State by its log and its heartbeat and, if both are silent, by its process."""
        if not run.is_open:
            end = run.row["end"]
            return end if end in ("finished", "stopped") else "failed"
        changes = run.tail.modified, _modified(run.folder / HEARTBEAT)
        if any(abs(time.time() - change) < run.patience for change in changes):
            return "training"
        now = time.monotonic()
        if now - run.sought > _SILENT_SECONDS:  # looking takes the lock of the run for a moment
            run.sought = now
            return "training" if is_held(run.folder) else "failed"
        return run.row.get("state", "failed")

    def folder(self, name: str) -> Path | None:
        """The folder of a run that was found, unless it has links: they may lead anywhere."""
        run = self._runs.get(name)
        try:
            has_links = run is None or any(path.is_symlink() for path in run.folder.iterdir())
        except OSError:  # it is gone
            return None
        return None if run is None or has_links else run.folder

    def news(self, since: int, chosen: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
        """The clock, and what has changed since it stood at `since`: 0 for everything.

        `runs` are the rows that have changed, `ids` the names of all runs if some came or went, `chosen` the
        curves and figures of the runs that were chosen if one of them changed.
        """
        with self._lock:
            news: dict[str, Any] = {}
            rows = [run.row for run in self._runs.values() if run.changed > since]
            if rows:
                news["runs"] = rows
            if self._listed > since or not since:
                news["ids"] = list(self._runs)
            runs = [self._runs[name] for name in dict.fromkeys(chosen) if name in self._runs]
            changed = max((run.changed for run in runs), default=0)
            if changed > since or (chosen and self._listed > since):
                shown = [run.id for run in runs if run.row["state"] not in ("reading", "unreadable")]
                news["chosen"] = self._views(tuple(shown), changed)
            return self._clock, news

    def _view(self, names: tuple[str, ...], changed: int) -> dict[str, Any]:
        """Curves of some runs as they are when the last of them has `changed`."""
        del changed
        try:
            return _curves([self._runs[name] for name in names])
        except Exception as error:  # a log may hold anything
            return {"ids": names, "charts": [], "error": repr(error)[:_MAX_TEXT]}


def _curves(runs: Sequence[WatchedRun]) -> dict[str, Any]:
    """The curves of some runs, and the figures: of one run alone, or side by side."""
    histories = [run.history() for run in runs]
    view: dict[str, Any] = {"ids": [run.id for run in runs], "charts": [], "marks": []}
    if len(histories) == 1:
        (one,) = histories
        view |= {
            "tiles": headline_tiles(one, {}),
            "charts": run_charts(one),
            "marks": [session_mark(one, later) for later in one.sessions[1:]],
        }
    elif histories:
        found = compare(histories)
        view |= {
            "names": found.names,
            "charts": comparison_charts(histories, found.names),
            "rows": [{"name": row.name, "cells": row.cells, "best": row.best} for row in found.rows()],
            "remark": found.remark,
            "differences": [[name, *map(_text, values)] for name, values in found.differences.items()],
        }
    return view


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_MAX_TEXT]


def _unreadable(run: WatchedRun, why: str) -> dict[str, Any]:
    return {"id": run.id, "name": run_name(run.folder), "state": "unreadable", "kind": "", "end": why}


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return -math.inf
