"""Traces of training steps with torch's profiler, planned or asked of a running job.

`touch RUN/profile` traces the next three steps of a run that is going on: a file works wherever the folder
does (other hosts, containers), and, unlike a signal, cannot end a process that does not expect it. When no
trace is taken a step costs one look for that file. Writing a trace stops the run for about a second per
20,000 operations in it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cpplm.core.progress import say
from cpplm.train.trainer import Callback, StepMetrics, Trainer

REQUEST = "profile"  # the file whose appearance asks for a trace
FOLDER = "profiles"
PROFILED_STEPS = 3
MOST_OPERATIONS = 15


class ProfileCallback(Callback):
    """Writes `profiles/step_N.json.gz`, a trace of three steps from N on, and a table of it into the log.

    The trace opens in ui.perfetto.dev and chrome://tracing. What callbacks do between the steps is in it,
    too, and the traced steps are slower than others. A trace that fails never ends the run.
    """

    def __init__(self, folder: Path, first_step: int = -1) -> None:
        """`folder` is that of the run; one trace begins with `first_step` (-1 = only on request)."""
        self._folder = folder
        self._first_step = first_step
        self._profiler: profile | None = None
        self._begun_at = 0

    def on_start(self, trainer: Trainer) -> None:
        """Begin with the first step of this session, where that was asked for."""
        self._begin_if_asked(trainer)

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """End a trace that has its steps; begin one that was asked for."""
        if self._profiler is not None and trainer.state.step >= self._begun_at + PROFILED_STEPS - 1:
            self._end(trainer, self._profiler)
        if self._profiler is None:
            self._begin_if_asked(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Write what a trace has so far."""
        if self._profiler is not None:
            self._end(trainer, self._profiler)

    def _begin_if_asked(self, trainer: Trainer) -> None:
        request, following = self._folder / REQUEST, trainer.state.step + 1
        asked = request.exists()
        if asked:
            request.unlink(missing_ok=True)
        if not asked and following != self._first_step:
            return
        activities = [ProfilerActivity.CPU]
        if trainer.model.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        try:
            profiler.start()
        except RuntimeError as error:  # another profiler holds the device
            say(f"warning: no profile of step {following}: {error}")
            return
        self._profiler, self._begun_at = profiler, following
        say(f"profiling {PROFILED_STEPS} steps from step {following}")

    def _end(self, trainer: Trainer, profiler: profile) -> None:
        self._profiler = None
        name = f"{FOLDER}/step_{self._begun_at:06d}.json.gz"
        part = self._folder / f"{name}.part.gz"  # its ending makes torch compress
        try:
            if trainer.model.device.type == "cuda":
                torch.cuda.synchronize(trainer.model.device)
            profiler.stop()
            part.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(part))
            part.replace(self._folder / name)
        except (RuntimeError, OSError) as error:
            with contextlib.suppress(OSError):
                part.unlink()
            say(f"warning: no profile of step {self._begun_at}: {error}")
            return
        device = trainer.model.device.type
        operations = most_expensive(profiler, device)
        trainer.log.write(
            "profile",
            step=self._begun_at,
            last_step=trainer.state.step,
            trace=name,
            device=device,
            operations=operations,
        )
        top = ", ".join(f"{o['name']} {o['share']:.0%}" for o in operations[:3])
        say(f"profile of steps {self._begun_at} to {trainer.state.step}: {self._folder / name} ({top})")


def most_expensive(profiler: profile, device: str) -> list[dict[str, Any]]:
    """The operations that took most time on the device, by their own time, without what they call.

    Returns:
        `name`, `calls`, `milliseconds` and `share` (of all operations' own time) of at most 15 operations.
    """
    field = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    averages = sorted(profiler.key_averages(), key=lambda average: -getattr(average, field))
    total = sum(getattr(average, field) for average in averages) or 1
    return [
        {
            "name": average.key,
            "calls": average.count,
            "milliseconds": round(getattr(average, field) / 1000, 3),
            "share": round(getattr(average, field) / total, 4),
        }
        for average in averages[:MOST_OPERATIONS]
    ]
