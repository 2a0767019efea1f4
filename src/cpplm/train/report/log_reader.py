"""A run as its log tells it: records by kind, sessions and how they ended, the headline figures.

Only the files of the run folder are read, so this works while the run is going on, and after it was killed.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cpplm.core.errors import UserError
from cpplm.core.locking import exclusive_lock
from cpplm.core.run_log import LOG, read_run_log, run_folder
from cpplm.core.settings import flatten, to_dict
from cpplm.train.settings import TrainSettings

Record = dict[str, Any]
Axis = Literal["step", "tokens", "seconds", "wall_seconds"]
AXES: tuple[Axis, ...] = ("step", "tokens", "seconds", "wall_seconds")


@dataclass(frozen=True)
class Session:
    """One process that trained the run: its record, how far it came, and what became of it.

    `wall_seconds` is the time between its first and its last record; validation and saving count.
    `ended` is "finished", the reason in an `end` record ("stopped", "failed"), "killed at step N" (the next
    session went on from an earlier one), "interrupted" (no word about how), or "running".
    `changes` are the settings in which it differs from the session before: name, then, now.
    """

    record: Record
    last_step: int
    wall_seconds: float
    ended: str
    changes: list[tuple[str, Any, Any]]


class RunHistory:
    """The log of one run.

    Attributes:
        folder: of the run.
        name: see `run_name`.
        sessions: oldest first, at least one.
        steps_per_record: steps of which each of `averaged_steps` is the mean.
        max_points: points of a curve that are worth drawing.
    """

    steps_per_record = 1
    max_points = 1000

    def __init__(
        self,
        run: str | Path,
        records: Iterable[Record] | None = None,
        is_training: Callable[[Path], bool] | None = None,
    ) -> None:
        """Read the log of a run.

        Args:
            run: its folder.
            records: those of the log, if somebody has read it already.
            is_training: whether a process works on a run whose log has no end; unless given, whether one of
                this machine holds it.

        Raises:
            UserError: not a run folder, a damaged log, or nothing was trained yet.
        """
        self.folder = run_folder(run)
        self.name = run_name(self.folder.resolve())
        self._events: dict[str, list[Record]] = {}
        self._is_training = is_training or is_held
        groups: list[list[Record]] = []
        for record in read_run_log(self.folder / LOG) if records is None else records:
            if record["event"] == "session":
                groups.append([])
            if groups:
                groups[-1].append(record)
                self._events.setdefault(record["event"], []).append(record)
        if not groups:
            raise UserError(f"{self.folder / LOG} holds no training session", fix="Run 'cpplm train' first.")
        before = 0.0
        for group in groups:
            for record in group:
                record["wall_seconds"] = before + record["time"] - group[0]["time"]
            before = group[-1]["wall_seconds"]
        self._step_numbers = [record["step"] for record in self.steps]
        self.sessions = [self._session(groups, number) for number in range(len(groups))]

    def events(self, kind: str) -> list[Record]:
        """All records of one kind, oldest first."""
        return self._events.get(kind, [])

    @property
    def steps(self) -> list[Record]:
        """The records of the training steps."""
        return self.events("step")

    @property
    def averaged_steps(self) -> list[Record]:
        """The records of the steps to take averages of: a thinned log keeps more of the unusual ones."""
        return self.steps

    @property
    def validations(self) -> list[Record]:
        """The records of the validations."""
        return self.events("validation")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the newest session, by name (see `flatten`)."""
        return flatten(self.sessions[-1].record["settings"])

    def place(self, step: int, axis: Axis) -> float:
        """The place of `step` on an axis: steps, tokens, seconds of training, seconds of the wall clock.

        The wall clock runs while a session does; the time between sessions is left out.
        """
        if axis == "step":
            return step
        index = bisect.bisect_right(self._step_numbers, step) - 1
        return float(self.steps[index][axis]) if index >= 0 else 0.0

    def _session(self, groups: list[list[Record]], number: int) -> Session:
        group, following = groups[number], groups[number + 1][0] if number + 1 < len(groups) else None
        settings = flatten(group[0]["settings"])
        earlier = flatten(groups[number - 1][0]["settings"]) if number else settings
        return Session(
            record=group[0],
            last_step=max(record.get("step", 0) for record in group),
            wall_seconds=group[-1]["wall_seconds"] - group[0]["wall_seconds"],
            ended=self._ended(group, following),
            changes=[
                (name, earlier.get(name), value)
                for name, value in settings.items()
                if earlier.get(name) != value
            ],
        )

    def _ended(self, group: list[Record], following: Record | None) -> str:
        ends = [record for record in group if record["event"] == "end"]
        if ends:
            return str(ends[-1]["reason"])
        if any(record.get("progress", 0) >= 1 for record in group):
            return "finished"
        if following is None:
            return "running" if self._is_training(self.folder) else "interrupted"
        reached = following.get("log_reached", following["step"])
        return f"killed at step {reached:,}" if reached > following["step"] else "interrupted"


def run_name(folder: Path) -> str:
    """The name of a run's folder or, where that is only called "run", of the folder above."""
    return folder.name if folder.name != "run" else folder.parent.name


def is_held(folder: Path) -> bool:
    """True if a process of this machine holds the run."""
    try:
        with exclusive_lock(folder):
            return False
    except UserError:
        return True


def defaults() -> dict[str, Any]:
    """The settings of a run that nobody gives, by name (see `flatten`), as the log writes them."""
    required: dict[str, Any] = {"data_dir": ("",), "tokenizer": Path(), "out": Path()}
    values = flatten(to_dict(TrainSettings(**required)))
    return {name: value for name, value in values.items() if name not in required}


def headline_figures(history: RunHistory) -> dict[str, Any]:
    """The headline figures of a run; those that its log does not have are left out.

    `loss` is in nats per token, averaged over the last 5 % of the steps; `data_wait` is the share of the time
    of the steps that was spent waiting for data; rates are medians over the steps.
    """
    session, steps, validations = history.sessions[-1], history.averaged_steps, history.validations
    values: dict[str, Any] = {
        "run": history.name,
        "folder": str(history.folder),
        "state": session.ended,
        "sessions": len(history.sessions),
        "parameters": session.record["parameters"]["total"],
    }
    if validations:
        best = min(validations, key=lambda record: record["bits_per_byte"])
        values |= {
            "bits_per_byte": validations[-1]["bits_per_byte"],
            "best_bits_per_byte": best["bits_per_byte"],
            "best_step": best["step"],
        }
    if steps:
        last, tail = history.steps[-1], steps[-max(1, len(steps) // 20) :]
        spent = sum(record["step_seconds"] for record in steps)
        values |= {
            "step": last["step"],
            "tokens": last["tokens"],
            "seconds": last["seconds"],
            "wall_seconds": round(last["wall_seconds"], 1),
            "loss": statistics.fmean(record["loss"] for record in tail),
            "tokens_per_second": median(steps, "tokens_per_second"),
            "data_wait": sum(record["data_seconds"] for record in steps) / spent if spent else 0.0,
            "peak_memory_bytes": max(record["peak_memory_bytes"] for record in history.steps),
        }
        if "mfu" in last:
            values["mfu"] = median(steps, "mfu")
    return values


def median(records: Sequence[Record], name: str) -> float:
    """Median of one figure over the records that have it."""
    return statistics.median(record[name] for record in records if name in record)
