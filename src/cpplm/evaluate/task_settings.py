"""Settings of `cpplm evaluate tasks`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group
from cpplm.core.storage import require_path
from cpplm.evaluate.settings import EvalTarget
from cpplm.generate.settings import require_at_least
from cpplm.tasks.settings import KindName


@dataclass(frozen=True)
class TaskEvalSettings:
    """Which tasks, how models are asked, and what they are compared with."""

    tasks: Annotated[Path, Argument("TASKS")]
    """Folder of `cpplm tasks build`."""
    against: tuple[str, ...] = ()
    """Other models that answer the same tasks: runs, hf:DIR, or URLs of servers."""
    kinds: tuple[KindName, ...] = ()
    """Only these kinds (empty = all)."""
    num_items: int = 400
    """Tasks of each kind at most."""
    prompt_style: Literal["auto", "chat", "code"] = "auto"
    """Ask by conversations or by the code around the place (auto = as the model was trained)."""
    temperature: float = 0.0
    """0 takes the likeliest token."""
    num_samples: int = 1
    """Answers to each task; pass@N is the share of tasks of which any of them is right."""
    seed: int = 0
    """Of the sampling; the first answer's, which all other figures are of."""
    guards: str = ""
    """Corpus to measure bits per byte and fill-in-the-middle on, beside the tasks (empty = none)."""
    headers: tuple[Path, ...] = ()
    """Folders of third-party headers (empty = those of the build)."""
    workers: int = 0
    """Compilers at the same time (0 = one per core)."""

    def __post_init__(self) -> None:
        require_at_least(self, num_items=1, workers=0, num_samples=1, temperature=0)
        if self.num_samples > 1 and not self.temperature:
            raise UserError("at --temperature 0 all samples are the same", fix="Use 0.8, or --num_samples 1.")

    def check_paths(self) -> None:
        """Refuse what is not there."""
        for path in (self.tasks, *self.headers):
            require_path(path)
        if self.guards:
            require_path(self.guards)


@dataclass(frozen=True)
class TasksCommand:
    """Settings of `cpplm evaluate tasks`."""

    target: Annotated[EvalTarget, group("")]
    tasks: Annotated[TaskEvalSettings, group("task")]
