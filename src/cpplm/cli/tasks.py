"""`cpplm tasks build|inspect|audit`."""

from __future__ import annotations

import random
from typing import Any

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS
from cpplm.tasks import audit as auditor
from cpplm.tasks.build import build_tasks, open_grader
from cpplm.tasks.item import TaskItem, first_of_each_kind, read_tasks
from cpplm.tasks.settings import TaskAuditSettings, TaskBuildSettings, TaskInspectSettings


def build(settings: TaskBuildSettings) -> Report:
    """Make tasks of a corpus."""
    figures = build_tasks(settings)
    return Report(_counts(figures["counts"]) + f"\nin {settings.out}", figures)


def inspect(settings: TaskInspectSettings) -> Report:
    """Show some tasks of each kind."""
    lines: list[str] = []
    counts: dict[str, dict[str, int]] = {}
    shown: list[dict[str, Any]] = []
    for split in SPLITS:
        items = read_tasks(settings.tasks, split, settings.kinds)
        by_kind: dict[str, list[TaskItem]] = {}
        for item in items:
            by_kind.setdefault(item.kind, []).append(item)
        counts[split] = {kind: len(group) for kind, group in by_kind.items()}
        for group in by_kind.values() if split == "val" else ():
            chosen = random.Random(settings.seed).sample(group, min(settings.num_examples, len(group)))  # noqa: S311
            lines += [_shown(item) for item in chosen]
            shown += [{"key": item.key, "kind": item.kind, "messages": item.messages} for item in chosen]
    return Report("\n\n".join([_counts(counts), *lines]), {"counts": counts, "shown": shown})


def audit(settings: TaskAuditSettings) -> Report:
    """Grade gold answers and cheats.

    Raises:
        UserError: a task rewards a cheat, or not its gold answer.
    """
    grader = open_grader(settings.tasks, settings.headers, settings.workers)
    items = read_tasks(settings.tasks, "val", settings.kinds)
    report = auditor.audit(first_of_each_kind(items, settings.num_items), grader)
    if report.faults:
        raise UserError("the tasks are not sound:\n" + report.table(), fix="Do not train on them.")
    return Report(report.table(), {"items": report.items, "worst": report.worst})


def _counts(counts: dict[str, dict[str, int]]) -> str:
    kinds = sorted({kind for each in counts.values() for kind in each})
    rows = [f"{kind:8} {counts['train'].get(kind, 0):7,} {counts['val'].get(kind, 0):7,}" for kind in kinds]
    return "\n".join([f"{'task':8} {'train':>7} {'val':>7}", *rows])


def _shown(item: TaskItem) -> str:
    head = f"---- {item.kind}, {item.level}, {item.project} ({item.license})"
    asked = item.prompt or f"{item.prefix}<HOLE>{item.suffix}"
    turns = [str(turn.get("content") or turn.get("tool_calls")) for turn in item.messages[1:]]
    return "\n".join([head, asked, *(f"> {turn}" for turn in turns or [item.answer])])
