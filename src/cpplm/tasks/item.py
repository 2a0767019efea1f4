"""One task: what a model is asked, the gold answer, and what grading needs; and folders of them.

train.parquet, val.parquet   one row per task
manifest.json                settings, counts by kind and level, what was left out and why
_COMPLETE                    written last
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from cpplm.core.errors import UserError
from cpplm.core.shards import COMPLETE, MANIFEST, Split, read_table, write_table
from cpplm.core.storage import Storage, sha256

_JSON = ("turns", "data")  # columns that hold JSON
SCHEMA = pa.schema(
    [("key", pa.string())]
    + [(name, pa.string()) for name in ("kind", "level", "split", "group", "project", "license")]
    + [(name, pa.string()) for name in ("prompt", "turns", "answer", "prefix", "suffix", "data")]
)


@dataclass(frozen=True)
class TaskItem:
    """A task in two forms: a conversation for chat models, text around a hole for completion models."""

    kind: str
    """Name of the kind of task that grades it."""
    level: str
    """Sub-kind or difficulty, for tables."""
    split: Split
    group: str
    """Document or file that it is made of: items of one group are not independent."""
    project: str
    license: str
    prompt: str
    """What the user says; empty where there is no conversation."""
    answer: str
    """The gold answer, as `TaskKind.cut` leaves it."""
    prefix: str = ""
    suffix: str = ""
    """Text before and after the hole."""
    turns: tuple[Mapping[str, Any], ...] = ()
    """The gold conversation behind the prompt, where it is more than the answer: calls of tools, results."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What grading needs, plain JSON."""

    @cached_property
    def key(self) -> str:
        """A hash of all that a model is asked and graded by."""
        content = (self.kind, self.prompt, self.prefix, self.suffix, self.answer, self.data)
        return sha256(json.dumps(content, sort_keys=True).encode())[:24]

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The gold conversation in the form of OpenAI's API; empty where there is none."""
        if not self.prompt:
            return []
        turns = self.turns or ({"role": "assistant", "content": self.answer},)
        return [{"role": "user", "content": self.prompt}, *turns]


def first_of_each_kind(items: Sequence[TaskItem], most: int) -> list[TaskItem]:
    """The first so many of each kind, in the stored order, which the seed of the build decides."""
    return [item for _, group in groupby(items, lambda each: each.kind) for item in islice(group, most)]


def write_tasks(storage: Storage, items: Iterable[TaskItem], **figures: Any) -> None:
    """Write a folder of tasks."""
    rows: dict[Split, list[dict[str, Any]]] = {"train": [], "val": []}
    for item in items:
        row = asdict(item) | {"key": item.key}
        rows[item.split].append(row | {name: json.dumps(row[name], sort_keys=True) for name in _JSON})
    for split, each in rows.items():
        write_table(storage, f"{split}.parquet", pa.Table.from_pylist(each, schema=SCHEMA))
    storage.write_json(MANIFEST, {"version": 1, "tasks": figures})
    storage.write(COMPLETE, b"")


def require_task_folder(folder: Path) -> None:
    """Refuse a folder without finished tasks, with UserError."""
    storage = Storage(folder) if folder.is_dir() else None
    if storage is None or not storage.exists(COMPLETE) or "tasks" not in storage.read_json(MANIFEST):
        raise UserError(f"{folder} holds no finished tasks", fix="Run 'cpplm tasks build --out FOLDER'.")


def read_tasks(folder: str | Path, split: Split, kinds: Iterable[str] = ()) -> list[TaskItem]:
    """The tasks of a split, of some kinds or all, in stored order.

    Raises:
        UserError: the folder is none of tasks, or is damaged.
    """
    path = Path(folder).expanduser()
    require_task_folder(path)
    wanted = set(kinds)
    items = []
    for row in read_table(Storage(path), f"{split}.parquet").to_pylist():
        key = row.pop("key")
        item = TaskItem(**row | {name: json.loads(row[name]) for name in _JSON})
        if item.key != key:
            raise UserError(f"{path}: a task was altered ({key})", fix="Build the tasks again.")
        if not wanted or item.kind in wanted:
            items.append(item)
    return items
