"""Figures to Weights & Biases and TensorBoard, when asked for. The run log is written in any case."""

from __future__ import annotations

import importlib
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.runlog import Tracker


def make_trackers(
    folder: Path, run_name: str, *, wandb_project: str, tensorboard: bool, settings: dict[str, Any]
) -> tuple[Tracker, ...]:
    """The trackers that were asked for.

    Raises:
        UserError: the library of one is not installed.
    """
    trackers: list[Tracker] = []
    if wandb_project:
        trackers.append(WandbTracker(wandb_project, run_name, folder, settings))
    if tensorboard:
        trackers.append(TensorBoardTracker(folder / "tensorboard"))
    return tuple(trackers)


def require_trackers(*, wandb_project: str, tensorboard: bool) -> None:
    """Find out before anything is written whether what was asked for is installed.

    Raises:
        UserError: the library of a tracker is missing.
    """
    if wandb_project:
        _optional("wandb", "--wandb_project")
    if tensorboard:
        _optional("torch.utils.tensorboard", "--tensorboard")


def _optional(module: str, flag: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{flag} needs a package: {error}", fix="pip install 'cpplm[tracking]'") from error


class WandbTracker:
    """One Weights & Biases run; a continued folder continues it."""

    def __init__(self, project: str, run_name: str, folder: Path, settings: dict[str, Any]) -> None:
        wandb = _optional("wandb", "--wandb_project")
        id_file = folder / "wandb_run_id"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex, encoding="utf-8")
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=id_file.read_text(encoding="utf-8"),
            dir=str(folder),
            config=settings,
            resume="allow",
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the figures of one step."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """Flush and finish the run."""
        self._run.finish()


class TensorBoardTracker:
    """An event file that TensorBoard opens."""

    def __init__(self, folder: Path) -> None:
        module = _optional("torch.utils.tensorboard", "--tensorboard")
        self._writer = module.SummaryWriter(str(folder))

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the figures of one step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()
