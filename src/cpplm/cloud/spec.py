"""A training run as one TOML file describes it, and as it lies in its bucket, where machines read it.

RUN/run.json             the specification: what to train, on which machines, hashes of everything
    packages/            cpplm itself, as machines install it
    lease/  heartbeat.json  checkpoints/   see `cpplm.core.lease`, `cpplm.train`
    logs/attempt_000001/ what the machine of an attempt wrote
    watcher/             state and time line of the watcher
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cpplm.cloud.backend import run_key
from cpplm.cloud.catalog import check_zones, slice_type
from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict, read_toml, to_arguments, to_dict
from cpplm.core.storage import Storage, is_bucket
from cpplm.train.settings import TrainSettings

SPEC = "run.json"
STOP = "watcher/stop.json"
BackendName = Literal["cloud", "local", "slurm"]
_OURS = ("data_dir", "tokenizer", "out", "checkpoint_dir", "upload_dir", "resume_from_step", "backend")


@dataclass(frozen=True)
class RunSpec:
    """All of a run."""

    run: str
    """Place of everything of the run: a bucket URL, or a folder that all machines see."""
    corpus: str
    """Folder or bucket URL written by `cpplm corpus build`."""
    tokenizer: str
    """File, URL of one, or the name of one that comes with cpplm."""
    train: dict[str, Any] = field(default_factory=dict)
    """Settings of `cpplm train`."""
    type: str = "v6e-4"
    """Slice."""
    zones: tuple[str, ...] = ()
    """Zones to try, in this order (empty = all that are known to have it)."""
    any_zone: bool = False
    """Also zones that are not known to have such chips."""
    spot: bool = False
    runtime: str = ""
    """Image of the machines (empty = that of the generation)."""
    project: str = ""
    """Of Google Cloud (empty = that of the credentials)."""
    backend: BackendName = "cloud"
    package: str = ""
    """cpplm as machines install it: a wheel or source archive (empty = made of the source that runs here)."""
    package_sha256: str = ""
    """Its hash, where `package` is a URL."""
    python: str = ""
    """A Python of the image that has the dependencies of cpplm already (empty = install them)."""
    slurm: tuple[str, ...] = ()
    """Further options of sbatch."""
    price_per_hour: float = -1.0
    """Dollars for the slice (-1 = as in the table)."""
    max_cost: float = -1.0
    """Dollars after which the run ends (-1 = no limit)."""
    heartbeat_seconds: float = 300.0
    """A machine that says nothing new for so long is given up."""
    setup_seconds: float = 1800.0
    """And so is one that is ready and says nothing at all."""
    poll_seconds: float = 20.0
    """Between two looks of the watcher."""
    takeover_seconds: float = 90.0
    """A watcher that is not heard of for so long is replaced by another one."""
    max_creates_per_hour: int = 30
    """Requests for machines."""
    corpus_sha256: str = ""
    """Of its manifest; set by `tpu run`, as the ones below."""
    tokenizer_sha256: str = ""
    launch: str = ""
    """Set by each `tpu run`."""

    def __post_init__(self) -> None:
        kind = slice_type(self.type)
        if self.backend == "cloud" and not self.any_zone:
            check_zones(kind, self.zones)
        if self.backend == "cloud" and not is_bucket(self.run):
            raise UserError(
                f"run = {self.run!r} is a folder here, which no machine in the cloud sees",
                fix="Name a bucket URL.",
            )
        for name in (
            "heartbeat_seconds",
            "setup_seconds",
            "poll_seconds",
            "takeover_seconds",
            "max_creates_per_hour",
        ):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} = {getattr(self, name)}", fix="Use a positive number.")
        if self.backend != "cloud" and self.spot:
            raise UserError(f"spot is of the cloud, and the backend is {self.backend}", fix="Leave it out.")

    @property
    def key(self) -> str:
        """The run's part of the names of its machines."""
        return run_key(self.run)

    @property
    def hourly_price(self) -> float:
        """Dollars."""
        if self.price_per_hour >= 0:
            return self.price_per_hour
        return slice_type(self.type).price(spot=self.spot) if self.backend == "cloud" else 0.0

    @property
    def places(self) -> tuple[str, ...]:
        """Zones in which machines are asked for, in this order; the name of a backend that has none."""
        zones = self.zones or slice_type(self.type).generation.zones
        return zones if self.backend == "cloud" else (self.backend,)


def read_recipe(path: Path, **changes: Any) -> RunSpec:
    """The run that a TOML file describes.

    Args:
        path: of the file.
        changes: settings that win over those in it; None leaves one as it is.

    Raises:
        UserError: no such file, not TOML, an unknown setting, or values that contradict each other.
    """
    values = read_toml(path, "recipe")
    values |= {name: value for name, value in changes.items() if value is not None}
    for name in ("corpus_sha256", "tokenizer_sha256", "launch"):
        if name in values:
            raise UserError(f"{path}: {name} is set by 'cpplm tpu run'", fix="Leave it out.")
    missing = [name for name in ("run", "corpus", "tokenizer") if not values.get(name)]
    if missing:
        raise UserError(f"{path}: {missing[0]} is missing", fix=f'Add {missing[0]} = "...".')
    if not is_bucket(values["run"]):
        values["run"] = str(Path(values["run"]).expanduser().resolve())
    _check_train(values.get("train", {}), str(path))
    return from_dict(RunSpec, values, where=str(path))


def _check_train(train: Any, where: str) -> None:
    """Refuse settings that `cpplm train` does not have, or that are the run's own."""
    if not isinstance(train, dict):
        raise UserError(f"{where}: train is a group of settings", fix="Write [train] on a line of its own.")
    for name in _OURS:
        if name in train:
            raise UserError(f"{where}: [train] {name} is set by the run", fix="Leave it out.")
    to_arguments(TrainSettings, train, where=f"{where}: [train]")


def write_spec(run: Storage, spec: RunSpec) -> RunSpec:
    """Write the specification, with a new launch."""
    spec = replace(spec, launch=secrets.token_hex(8))
    run.write_json(SPEC, to_dict(spec))
    return spec


def read_spec(run: Storage) -> RunSpec:
    """The specification of a run; UserError if there is none, or it cannot be read."""
    if not run.exists(SPEC):
        raise UserError(f"{run.location} is no run of 'cpplm tpu run' (no {SPEC})", fix="Check the URL.")
    return from_dict(RunSpec, run.read_json(SPEC), where=run.path(SPEC))
