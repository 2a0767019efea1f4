"""The page's part on reinforcement learning: what the answers of the steps were like."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from cpplm.core.jsonl import read_jsonl
from cpplm.train.report.log_reader import Record, RunHistory

ROLLOUTS = "rollouts.jsonl"
"""All answers that were sampled, in the folder of the run."""

_STEPS = 20  # steps at the beginning and at the end whose outcomes are compared
_TASKS = 30  # tasks of which the change is shown


def rollouts_view(history: RunHistory) -> Record:
    """Outcomes then and now, tasks that changed most, and examples; empty for other runs."""
    records = history.events("rollouts")
    if not records:
        return {}
    first, last = _outcomes(records[:_STEPS]), _outcomes(records[-_STEPS:])
    return {
        "outcomes": [(name, first.get(name, 0.0), last.get(name, 0.0)) for name in sorted({**first, **last})],
        "steps": min(_STEPS, len(records)),
        "tasks": _tasks(history.folder / ROLLOUTS),
        "examples": [record for record in records if record["examples"]],
    }


def _outcomes(records: list[Record]) -> dict[str, float]:
    """The share of each outcome of answers, cheats and other failures by their names."""
    counts = Counter[str]()
    for record in records:
        counts.update(record["outcomes"])
    return {name: count / counts.total() for name, count in counts.items()}


def _tasks(path: Path) -> list[dict[str, Any]]:
    """The tasks whose mean reward changed most between the first and the last time that they were asked."""
    by_task: dict[str, dict[int, list[float]]] = {}
    kinds: dict[str, str] = {}
    for record in read_jsonl(path, damaged="skip"):
        by_task.setdefault(record["key"], {}).setdefault(record["step"], []).append(record["reward"])
        kinds[record["key"]] = record["kind"]
    rows: list[dict[str, Any]] = []
    for key, steps in by_task.items():
        asked = sorted(steps)
        first, last = fmean(steps[asked[0]]), fmean(steps[asked[-1]])
        rows.append({"key": key, "kind": kinds[key], "asked": len(asked), "first": first, "last": last})
    rows.sort(key=lambda row: (-abs(row["last"] - row["first"]), row["key"]))
    return rows[:_TASKS]
