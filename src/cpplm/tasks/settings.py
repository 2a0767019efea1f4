"""Settings of `cpplm tasks build | inspect | audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.storage import require_path

KindName = Literal["tiny", "fix", "denoise", "fill", "doc", "own", "ask", "commit"]


@dataclass(frozen=True)
class TaskBuildSettings:
    """What tasks are made of, and how many."""

    data_dir: Annotated[str, Argument("CORPUS", positional=True)] = ""
    """Corpus of `cpplm corpus build`: validation documents make validation tasks."""
    out: Annotated[Path, Argument("FOLDER")] = Path("tasks")
    """Folder of the tasks."""
    projects: tuple[Path, ...] = ()
    """Folders of the corpus's projects, for `ask` and `commit`."""
    projects_dir: Path | None = None
    """A folder whose sub-folders are projects."""
    kinds: tuple[KindName, ...] = ("fix", "fill", "doc", "own", "ask", "commit")
    """Kinds of tasks; `tiny` needs no corpus."""
    num_train: int = 1600
    """Tasks of each kind to train on, at most."""
    num_val: int = 400
    """Tasks of each kind held out, at most."""
    headers: tuple[Path, ...] = ()
    """Folders of third-party headers."""
    seed: int = 0
    """Of every choice."""
    workers: int = 0
    """Compilers at the same time (0 = one per core)."""

    def __post_init__(self) -> None:
        if self.num_train < 0 or self.num_val < 0 or not self.num_train + self.num_val:
            raise UserError("--num_train and --num_val leave nothing to build", fix="Use 1600 and 400.")
        if not self.data_dir and set(self.kinds) != {"tiny"}:
            raise UserError("no corpus was given", fix="Write cpplm tasks build CORPUS, or --kinds tiny.")
        if (
            not (self.projects or self.projects_dir)
            and {"ask", "commit"} & set(self.kinds)
            and len(self.kinds) == 1
        ):
            raise UserError(f"{self.kinds[0]} needs the projects", fix="Add --projects FOLDER.")

    def check_paths(self) -> None:
        """Refuse what is not there."""
        for path in (self.data_dir, self.projects_dir, *self.projects, *self.headers):
            if path:
                require_path(path)


@dataclass(frozen=True)
class TaskFolderSettings:
    """Tasks that were built."""

    tasks: Annotated[Path, Argument("TASKS", positional=True)]
    """Folder of `cpplm tasks build`."""
    kinds: tuple[KindName, ...] = ()
    """Only these kinds (empty = all)."""

    def check_paths(self) -> None:
        """Refuse what is not there."""
        require_path(self.tasks)


@dataclass(frozen=True)
class TaskInspectSettings(TaskFolderSettings):
    """Which tasks to show."""

    num_examples: int = 2
    """Examples of each kind."""
    seed: int = 0
    """Of their choice."""


@dataclass(frozen=True)
class TaskAuditSettings(TaskFolderSettings):
    """How many tasks are tried."""

    num_items: int = 40
    """Held-out tasks of each kind whose gold answers and cheats (answers that must earn nothing: empty, a
    comment, `{}`, ...) are graded."""
    headers: tuple[Path, ...] = ()
    """Folders of third-party headers."""
    workers: int = 0
    """Compilers at the same time (0 = one per core)."""
