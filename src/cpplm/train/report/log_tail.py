"""The log of a run read while it grows: only what was appended, thinned so that memory does not grow with it.

Rule: records of the steps, and those of validations, are put into bins of equal numbers. A bin keeps its
newest line, the lines with the lowest and the highest of each of a few figures, and the sums of these. Where
there would be more than `MAX_BINS` bins, two become one. So a spike in one step of 100,000 is still there,
and averages are those of all steps.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpplm.core.appended_lines import AppendedLines
from cpplm.train.report.log_reader import Record, RunHistory

MAX_BINS = 256
_MAX_SESSIONS = 600  # lines of sessions and their ends that are kept, the newest
_MAX_STEP_LINE = 1 << 14  # bytes; a longer record of a step is passed over

_EVENT = b'{"event": "'
_Line = tuple[int, bytes]
"""A line of a log, with its number."""
_SESSIONS = (b"session", b"end")
_FIGURES = {
    b"step": ("loss", "gradient_norm", "tokens_per_second"), b"validation": ("loss", "bits_per_byte"),
    b"rollouts": (), b"cpp_evaluation": (),
}  # fmt: skip
"""Kinds of records that are thinned, with the figures whose extremes are kept."""


@dataclass(slots=True)
class _Figure:
    """A figure of a bin: its lowest and its highest with their lines, and its sum."""

    low: float
    lowest: _Line
    high: float
    highest: _Line
    total: float
    count: int = 1


@dataclass(slots=True)
class _Bin:
    newest: _Line
    count: int = 0
    figures: dict[str, _Figure] = field(default_factory=dict)

    def add(self, line: _Line, names: Mapping[str, bytes]) -> None:
        """Put a line into it: a million of them in some seconds, so it is searched and not parsed."""
        self.count += 1
        self.newest, figures, text = line, self.figures, line[1]
        for name, start in names.items():
            begin = text.find(start) + len(start)
            try:
                value = float(text[begin : text.find(b",", begin)])
            except ValueError:  # it has none
                continue
            if not math.isfinite(value):
                continue
            figure = figures.get(name)
            if figure is None:
                figures[name] = _Figure(value, line, value, line, value)
                continue
            figure.total += value
            figure.count += 1
            if value < figure.low:
                figure.low, figure.lowest = value, line
            elif value > figure.high:
                figure.high, figure.highest = value, line

    def merge(self, other: _Bin) -> None:
        """Take in the bin behind."""
        self.count, self.newest = self.count + other.count, other.newest
        for name, more in other.figures.items():
            figure = self.figures.setdefault(name, more)
            if figure is more:
                continue
            figure.total += more.total
            figure.count += more.count
            if more.low < figure.low:
                figure.low, figure.lowest = more.low, more.lowest
            if more.high > figure.high:
                figure.high, figure.highest = more.high, more.highest


@dataclass
class _Thinned:
    """The bins of one kind of record."""

    names: Mapping[str, bytes]
    """The figures whose extremes are kept, each with the bytes that stand before it."""
    bins: list[_Bin] = field(default_factory=list)
    size: int = 1
    """Records of each of the bins but the last."""

    def add(self, line: _Line) -> None:
        """Put a line into the last bin or, where that is full, into a new one."""
        if not self.bins or self.bins[-1].count == self.size:
            if len(self.bins) == MAX_BINS:
                for one, other in zip(self.bins[::2], self.bins[1::2], strict=True):
                    one.merge(other)
                del self.bins[1::2]
                self.size *= 2
            self.bins.append(_Bin(line))
        self.bins[-1].add(line, self.names)

    def lines(self) -> Iterable[_Line]:
        """All that are kept, some of them twice."""
        for each in self.bins:
            yield each.newest
            for figure in each.figures.values():
                yield figure.lowest
                yield figure.highest


class ThinnedHistory(RunHistory):
    """History of a run from the records that `LogTail` has kept."""

    max_points = 400

    def __init__(
        self, folder: Path, records: list[tuple[Record, Record]], steps_per_record: int,
        is_training: Callable[[Path], bool],
    ) -> None:  # fmt: skip
        """Put it in order.

        Args:
            folder: of the run.
            records: each with the figures that are means over a bin, where it stands for one.
            steps_per_record: steps of a bin.
            is_training: as in `RunHistory`.

        Raises:
            UserError: nothing was trained yet, or the log is gone.
        """
        super().__init__(folder, [record for record, _ in records], is_training)
        self.steps_per_record = steps_per_record
        self._averaged = [
            {**record, **means} for record, means in records if means and "wall_seconds" in record
        ]

    @property
    def averaged_steps(self) -> list[Record]:
        """One for each bin, its figures the means."""
        return self._averaged


class LogTail(AppendedLines):
    """A log that another process may be writing, or replace, or remove."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        super().__init__(path)
        self._begin()

    def _begin(self) -> None:
        self._number = 0
        self._sessions: deque[_Line] = deque(maxlen=_MAX_SESSIONS)
        self._newest: _Line | None = None
        self._thinned = {
            kind: _Thinned({name: f'"{name}": '.encode() for name in names})
            for kind, names in _FIGURES.items()
        }

    def poll(self) -> bool:
        """Read what was appended; True if there is anything new.

        Raises:
            OSError: as `AppendedLines.read`.
        """
        is_other, lines = self.read()
        if is_other:
            self._begin()
        for line in lines:
            self._take(line)
        return is_other or bool(lines)

    def _take(self, text: bytes) -> None:
        self._number += 1
        kind = text[len(_EVENT) : text.find(b'"', len(_EVENT))] if text.startswith(_EVENT) else b""
        if kind in _SESSIONS:
            if self._newest is not None:  # tells how far the session before came
                self._sessions.append(self._newest)
            self._newest = (self._number, text)
            self._sessions.append(self._newest)
        elif kind in self._thinned and len(text) <= _MAX_STEP_LINE:
            self._newest = (self._number, text)
            self._thinned[kind].add(self._newest)

    def history(self, folder: Path, is_training: Callable[[Path], bool]) -> ThinnedHistory:
        """History of the records read so far, as the pages and comparisons take it.

        Raises:
            UserError: nothing was trained yet, or the log is gone.
        """
        kept = dict(self._sessions)
        for thinned in self._thinned.values():
            kept |= dict(thinned.lines())
        steps = self._thinned[b"step"]
        means = {
            each.newest[0]: {name: figure.total / figure.count for name, figure in each.figures.items()}
            for each in steps.bins
        }
        records = [
            (record, means.get(number, {}))
            for number, text in sorted(kept.items())
            if (record := _record(text)) is not None
        ]
        return ThinnedHistory(folder, records, steps.size, is_training)


def _record(text: bytes) -> dict[str, Any] | None:
    """None of a line that is damaged."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
