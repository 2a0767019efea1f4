"""The run log: one JSON object per line, flushed at once; optionally mirrored to trackers.

A log survives kill -9: a torn last line is dropped on reading, and a resumed run cuts the records that
lie after the step from which it continues, so that no step appears twice.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile, read_jsonl

LOG = "log.jsonl"  # its name inside a run folder


class Tracker(Protocol):
    """Anything that takes figures by step: Weights & Biases, TensorBoard."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the figures of one step."""

    def close(self) -> None:
        """Flush."""


def read_run_log(path: Path) -> list[dict[str, Any]]:
    """All complete records of a log, oldest first; an unfinished last line is ignored.

    Raises:
        UserError: a complete line is not a record.
    """
    records = []
    for number, record in enumerate(read_jsonl(path), start=1):
        if not isinstance(record, dict) or "event" not in record:
            raise UserError(f"{path}:{number} is not a record of a run log", fix="Remove that line.")
        records.append(record)
    return records


def run_folder(run: str | Path) -> Path:
    """The local folder of a run, for its log and page; UserError if it is none."""
    path = Path(run).expanduser()
    if not (path / LOG).exists():
        raise UserError(
            f"{path} is not the folder of a run (no {LOG})", fix="Name the --out of 'cpplm train'."
        )
    return path


class RunLog:
    """Appends records `{"event": ..., "time": ..., **values}` to a JSON Lines file.

    `reached` is the greatest step in the log as it was found.
    """

    def __init__(
        self, path: Path, *, trackers: tuple[Tracker, ...] = (), truncate_after_step: int | None = None
    ) -> None:
        """Open for appending.

        Args:
            path: the file; its folder is made.
            trackers: each gets the numeric values of every record that has a step.
            truncate_after_step: drop older records with a greater step (the run continues from that step).

        Raises:
            UserError: the log is damaged or cannot be written; an older log stays as it was.
        """
        older = read_run_log(path)
        records = [r for r in older if truncate_after_step is None or r.get("step", 0) <= truncate_after_step]
        self.reached = max((record.get("step", 0) for record in older), default=0)
        self._file = JsonlFile(path, records)
        self._trackers = trackers

    def write(self, event: str, **values: Any) -> None:
        """Append one record and push it to the operating system."""
        self._file.append({"event": event, "time": round(time.time(), 3), **values})
        if "step" in values:
            numbers = {
                f"{event}/{k}": float(v)
                for k, v in values.items()
                if isinstance(v, int | float) and k != "step"
            }
            for tracker in self._trackers:
                tracker.log(values["step"], numbers)

    def close(self) -> None:
        """Flush to disk and close the trackers."""
        self._file.close()
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NullLog(RunLog):
    """Takes everything and keeps nothing: for the ranks that do not write the log."""

    def __init__(self) -> None:
        """Open no file."""
        self.reached = 0

    def write(self, event: str, **values: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
