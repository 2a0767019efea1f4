"""Figures to Weights & Biases and TensorBoard, when asked for. The run log is written in any case.

Both see what the run log holds: records may come out of the order of their steps (a measurement that took a
while carries the step it is about), and a continued run replaces what was recorded after its first step.
A tracker that fails is left alone; the run goes on.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

from cpplm.core.errors import UserError, import_extra
from cpplm.core.progress import log_info
from cpplm.core.run_log import Tracker
from cpplm.core.settings import to_dict
from cpplm.train.settings import TrainSettings


def make_trackers(settings: TrainSettings) -> tuple[Tracker, ...]:
    """The trackers that a run asks for.

    Raises:
        UserError: the library of one is not installed, or Weights & Biases cannot be reached.
    """
    trackers: list[Tracker] = []
    if settings.wandb_project:
        name = settings.run_name or settings.out.name
        trackers.append(WandbTracker(settings.wandb_project, name, settings.out, to_dict(settings)))
    if settings.tensorboard:
        trackers.append(TensorBoardTracker(settings.out / "tensorboard"))
    return tuple(NonFatalTracker(tracker) for tracker in trackers)


def require_trackers(settings: TrainSettings) -> None:
    """Find out before anything is written whether what a run asks for is installed.

    Raises:
        UserError: the library of a tracker is missing.
    """
    if settings.wandb_project:
        import_tracker("wandb", "--wandb_project")
    if settings.tensorboard:
        import_tracker("torch.utils.tensorboard", "--tensorboard")


def import_tracker(module: str, flag: str) -> ModuleType:
    """The library of a tracker; a `UserError` says that `flag` needs it if it is missing."""
    return import_extra(module, f"{flag} needs", "tracking")


class WandbTracker:
    """One Weights & Biases run; a continued folder continues it.

    Figures are drawn over their own `step`: Weights & Biases throws away what is logged under a smaller
    number than before when that number is its built-in step.
    """

    def __init__(self, project: str, run_name: str, folder: Path, settings: dict[str, Any]) -> None:
        wandb = import_tracker("wandb", "--wandb_project")
        id_file = folder / "wandb_run_id"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex, encoding="utf-8")
        try:
            self._run = wandb.init(
                project=project,
                name=run_name,
                id=id_file.read_text(encoding="utf-8"),
                dir=str(folder),
                config=settings,
                resume="allow",
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"Weights & Biases cannot be used: {' '.join(str(error).split())}",
                fix="Run 'wandb login', or set WANDB_MODE=offline and upload with 'wandb sync' later.",
            ) from error
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the figures of one step."""
        self._run.log({**values, "step": step})

    def close(self) -> None:
        """Flush and finish the run."""
        self._run.finish()


class TensorBoardTracker:
    """Event files that TensorBoard opens, one for each session."""

    def __init__(self, folder: Path) -> None:
        self._module = import_tracker("torch.utils.tensorboard", "--tensorboard")
        self._folder = folder
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the figures of one step.

        The first record of a session says from which step it goes on; what earlier sessions recorded
        after that step is hidden, as the run log drops it.
        """
        if self._writer is None:
            self._writer = self._module.SummaryWriter(str(self._folder), purge_step=step + 1)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        if self._writer is not None:
            self._writer.close()


class NonFatalTracker:
    """A tracker whose failure is said once and ends only the tracking."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._failed = False

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the figures of one step, unless that failed before."""
        if not self._failed:
            try:
                self._tracker.log(step, values)
            except Exception as error:  # a library of others, with files and a network: anything may come
                self._give_up(error)

    def close(self) -> None:
        """Flush."""
        try:
            self._tracker.close()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._failed:
            name = type(self._tracker).__name__
            log_info(f"warning: {name} failed and gets no more figures, the run log does: {error}")
        self._failed = True
