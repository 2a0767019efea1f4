"""From a corpus to a folder of tasks.

Each task depends on the corpus, the projects and the seed alone. What the compiler said is kept in the
folder: a build that was killed goes on from there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import log_info, progress_bar
from cpplm.core.settings import to_dict
from cpplm.core.shards import COMPLETE, MANIFEST, SPLITS
from cpplm.core.storage import Storage
from cpplm.corpus.ingest.discovery import subfolders
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem, write_tasks
from cpplm.tasks.kinds import KINDS
from cpplm.tasks.settings import TaskBuildSettings
from cpplm.tasks.source import TaskSource

CACHE = "cache"


def build_tasks(settings: TaskBuildSettings) -> dict[str, Any]:
    """Build tasks, unless the folder has them; returns the manifest's figures.

    Raises:
        UserError: nothing could be made, or the folder holds tasks of other settings.
    """
    storage = Storage(settings.out, create=True)
    recorded = to_dict(settings) | {"workers": 0, "out": ""}
    if storage.exists(COMPLETE):
        found: dict[str, Any] = storage.read_json(MANIFEST).get("tasks", {})
        if found.get("settings") != recorded:
            raise UserError(f"{settings.out} holds other tasks or something else", fix="Name another --out.")
        return found
    with exclusive_lock(settings.out):
        grader = Grader(
            headers=settings.headers, cache_dir=settings.out / CACHE, workers=settings.workers,
            quiet=True,
        )  # fmt: skip
        folders = [*settings.projects, *(subfolders(settings.projects_dir) if settings.projects_dir else [])]
        projects = {folder.resolve().name: folder.resolve() for folder in folders}
        source = TaskSource(settings.data_dir, projects, grader, seed=settings.seed)
        items = _items(settings, source)
        counts = {split: Counter(item.kind for item in items if item.split == split) for split in SPLITS}
        if not items:
            raise UserError(
                "no task could be made",
                fix="Use a corpus with more code that compiles: 'cpplm corpus build --mode compilable'.",
            )
        levels = Counter(f"{item.kind}: {item.level}" for item in items)
        figures = {
            "settings": recorded,
            "counts": {split: dict(sorted(each.items())) for split, each in counts.items()},
            "levels": dict(sorted(levels.items())),
            "projects": {name: str(folder) for name, folder in sorted(projects.items())},
            "headers": [str(path.resolve()) for path in settings.headers],
            "compiler": grader.judge.compiler,
        }
        write_tasks(storage, items, **figures)
    return figures


def _items(settings: TaskBuildSettings, source: TaskSource) -> list[TaskItem]:
    """Tasks of all kinds; of those that are in both splits, the ones of validation."""
    wanted = {"train": settings.num_train, "val": settings.num_val}
    made: dict[str, TaskItem] = {}
    for name in settings.kinds:
        kind = KINDS[name]
        if kind.needs_projects and not source.projects:
            log_info(f"{name}: left out, it needs --projects")
            continue
        for split in reversed(SPLITS):  # validation first
            count = 0
            with progress_bar(wanted[split], f"{name}, {split}", "task") as bar:
                for item in kind.build(source, split, wanted[split]):
                    count += made.setdefault(item.key, item) is item
                    bar.update()
            log_info(f"{name}: {count:,} tasks for {split}")
    return sorted(made.values(), key=lambda item: (item.kind, item.split, source.rank(item.key)))


def open_grader(folder: Path, headers: tuple[Path, ...], workers: int, *, quiet: bool = False) -> Grader:
    """A grader that knows what was compiled for a folder of tasks."""
    recorded = Storage(folder).read_json(MANIFEST)["tasks"]["headers"]
    return Grader(
        headers=headers or tuple(map(Path, recorded)), cache_dir=folder / CACHE, workers=workers,
        quiet=quiet,
    )  # fmt: skip
