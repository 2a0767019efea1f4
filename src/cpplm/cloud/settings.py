"""Settings of `cpplm tpu ...` for machines and runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cpplm.cloud.spec import BackendName
from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.storage import require_path


@dataclass(frozen=True)
class DoctorSettings:
    """Settings of `cpplm doctor`."""

    tpu: bool = False
    """Look at a machine with TPUs: would training work there?"""
    bucket: str = ""
    """With --tpu: bucket or folder of the run, which is tried as well."""

    def __post_init__(self) -> None:
        if self.bucket and not self.tpu:
            raise UserError("--bucket is tried with --tpu alone", fix="Add --tpu, or leave it out.")


@dataclass(frozen=True)
class TypesSettings:
    """Settings of `cpplm tpu types`."""

    generation: Literal["", "v5e", "v6e"] = ""
    """Kind of chip (empty = all)."""


@dataclass(frozen=True)
class PriceSettings:
    """Settings of `cpplm tpu price`."""

    type: Annotated[str, Argument("SLICE", positional=True)]
    """Slice, as v6e-4."""
    hours: float = 1.0
    """Hours that the slice runs, for the total price."""

    def __post_init__(self) -> None:
        if not self.hours > 0:
            raise UserError(f"--hours {self.hours} is no time")


@dataclass(frozen=True)
class PlaceSettings:
    """Settings of `cpplm tpu list`, and of a command about machines there."""

    backend: BackendName = "cloud"
    """Cloud TPU, Slurm, or processes of this machine."""
    project: str = ""
    """Of Google Cloud (empty = that of the credentials)."""


@dataclass(frozen=True)
class CreateSettings:
    """Settings of `cpplm tpu create`."""

    name: Annotated[str, Argument("NAME", positional=True)]
    """Of the machine."""
    zone: str
    """Zone of the machine."""
    type: str = "v6e-4"
    """Slice."""
    spot: bool = False
    """For less, and it may be taken away at any time."""
    runtime: str = ""
    """Image (empty = that of the generation)."""
    project: str = ""
    """Of Google Cloud (empty = that of the credentials)."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings(PlaceSettings):
    """Settings of `cpplm tpu delete`, and of another command about one machine."""

    name: Annotated[str, Argument("NAME", positional=True)]
    """Of the machine, as 'cpplm tpu list' shows it."""
    zone: str = ""
    """Its zone, if several have the name."""


@dataclass(frozen=True)
class SshSettings(NodeSettings):
    """Settings of `cpplm tpu ssh`."""

    user: str = ""
    """User name on the machine (empty = the one on this machine)."""
    command: str = ""
    """Run this instead of a shell."""


@dataclass(frozen=True)
class StopSettings(PlaceSettings):
    """Settings of `cpplm tpu stop`."""

    name: Annotated[str, Argument("NAME", positional=True)] = ""
    """Machine that can be started again."""
    zone: str = ""
    """Its zone, if several have the name."""
    run: str = ""
    """Instead of a machine, end this run: its watcher deletes the machine, 'cpplm tpu run' goes on."""

    def __post_init__(self) -> None:
        if bool(self.name) == bool(self.run):
            raise UserError("what shall be stopped?", fix="Give the NAME of a machine, or --run RUN.")

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        if self.run:
            require_path(self.run)


@dataclass(frozen=True)
class RunPlaceSettings:
    """Settings of `cpplm tpu status` and `cpplm tpu watch`, and of another command about one run."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Bucket URL or folder of the run."""

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        require_path(self.run)


@dataclass(frozen=True)
class LogsSettings(RunPlaceSettings):
    """Settings of `cpplm tpu logs`."""

    attempt: int = -1
    """Number of the attempt (machine) whose log is shown (-1 = the last)."""
    lines: int = 40
    """Number of lines to show, from the end of the log."""


@dataclass(frozen=True)
class RecipeSettings:
    """Settings of a command that reads a recipe; what is given wins over what stands in it."""

    recipe: Annotated[Path, Argument("FILE")]
    """TOML file that describes the run."""
    spot: bool = False
    """Spot machines."""
    zones: tuple[str, ...] = ()
    """Zones to try, in this order."""
    max_cost: float = -1.0
    """Dollars after which the run ends."""
    backend: Literal["", "cloud", "local", "slurm"] = ""
    """Backend that gives machines (empty = as in the recipe)."""
    project: str = ""
    """Of Google Cloud."""

    def check_paths(self) -> None:
        """Refuse a recipe that is not there."""
        require_path(self.recipe)


@dataclass(frozen=True)
class RunSettings(RecipeSettings):
    """Settings of `cpplm tpu run`."""

    detach: bool = False
    """Only write the run into its bucket; 'cpplm tpu watch' begins it."""


@dataclass(frozen=True)
class SkySettings(RecipeSettings):
    """Settings of `cpplm tpu sky`."""

    out: Annotated[Path, Argument("FILE")] = Path("sky.yaml")
    """The task."""
