"""Settings of `cpplm sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.storage import require_path
from cpplm.sweep.recipe import SweepRecipe


@dataclass(frozen=True)
class SweepSettings:
    """A sweep, begun or gone on with."""

    recipe: Annotated[Path, Argument("FILE")]
    """TOML file: command, settings, space, trials."""
    out: Annotated[Path | None, Argument("FOLDER")] = None
    """Folder of the sweep: journal, trials, page (default: runs/ and the name of the recipe)."""

    def check_paths(self) -> None:
        """Refuse a recipe whose trials are not possible."""
        SweepRecipe.load(self.recipe).check_paths()


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of `cpplm sweep worker` and `cpplm sweep show`."""

    sweep: Annotated[Path, Argument("SWEEP", positional=True)]
    """Folder of the sweep, or a file in it."""

    def check_paths(self) -> None:
        """Refuse a sweep that is not there."""
        require_path(self.sweep)


@dataclass(frozen=True)
class WandbAgentSettings:
    """A worker of a Weights & Biases sweep."""

    sweep_id: Annotated[str, Argument("ID", positional=True)]
    """Sweep there, as ID, PROJECT/ID or ENTITY/PROJECT/ID."""
    recipe: Annotated[Path, Argument("FILE")]
    """TOML file with command, settings, seconds and metric; the space is that of the sweep there."""
    out: Annotated[Path | None, Argument("FOLDER")] = None
    """Folder of the trials (default: runs/ and the name of the recipe)."""
    count: int = -1
    """End after so many trials (-1 = when there are no more)."""

    def __post_init__(self) -> None:
        if self.count < 1 and self.count != -1:
            raise UserError(f"--count {self.count}", fix="Use a number from 1 up.")

    def check_paths(self) -> None:
        """Refuse a recipe that cannot be read."""
        SweepRecipe.load(self.recipe, search=False)
