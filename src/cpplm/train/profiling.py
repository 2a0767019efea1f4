"""The cost of a step: traces of its operations, planned or asked of a running job, and what holds its memory.

`touch RUN/profile` traces the next three steps of a run that is going on: a file works wherever the folder
does (other hosts, containers), and, unlike a signal, cannot end a process that does not expect it. When no
trace is taken a step costs one look for that file. Writing a trace stops the run for about a second per
20,000 operations in it.
"""

from __future__ import annotations

from pathlib import Path

from cpplm.core.progress import log_info
from cpplm.train.backend import Profiler
from cpplm.train.trainer import Callback, StepMetrics, Trainer

REQUEST = "profile"  # the file whose appearance asks for a trace
FOLDER = "profiles"
PROFILED_STEPS = 3
MEMORY_PARTS = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "rest_bytes")


class ProfileCallback(Callback):
    """Writes `profiles/step_N`, a trace of three steps from N on, and a table of it into the log.

    What callbacks do between the steps is in it, too, and the traced steps are slower than others. A trace
    that fails never ends the run.
    """

    def __init__(self, folder: Path, first_step: int = -1) -> None:
        """`folder` is that of the run; one trace begins with `first_step` (-1 = only on request)."""
        self._folder = folder
        self._first_step = first_step
        self._profiler: Profiler | None = None
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
        requested = request.exists()
        if requested:
            request.unlink(missing_ok=True)
        if not requested and following != self._first_step:
            return
        profiler = trainer.train_module.profiler(self._folder / FOLDER / f"step_{following:06d}")
        try:
            profiler.start()
        except RuntimeError as error:  # another profiler holds the device
            log_info(f"warning: no profile of step {following}: {error}")
            return
        self._profiler, self._begun_at = profiler, following
        log_info(f"profiling {PROFILED_STEPS} steps from step {following}")

    def _end(self, trainer: Trainer, profiler: Profiler) -> None:
        self._profiler = None
        try:
            operations = profiler.stop()
        except (RuntimeError, OSError) as error:
            log_info(f"warning: no profile of step {self._begun_at}: {error}")
            return
        trainer.log.write(
            "profile",
            step=self._begun_at,
            last_step=trainer.state.step,
            trace=str(profiler.path.relative_to(self._folder)),
            device=trainer.train_module.device_type,
            operations=operations,
        )
        top = ", ".join(f"{o['name']} {o['share']:.0%}" for o in operations[:3])
        summary = f" ({top})" if top else ""
        log_info(f"profile of steps {self._begun_at} to {trainer.state.step}: {profiler.path}{summary}")


class MemoryCallback(Callback):
    """Writes a record `memory` after the first step of a session and every so many steps.

    Sizes of tensors are counted, so this costs next to nothing; what a rank holds of a sharded tensor counts.

    `held_bytes` is what the run holds between steps (on CUDA in tensors, else in the whole process),
    `peak_bytes` the most so far, and the parts sum to the peak: `rest_bytes` is what is neither weight,
    gradient nor optimizer state, without CUDA the program itself included. `reserved_bytes`, on CUDA only, is
    what the allocator took from the device.
    """

    def __init__(self, every: int) -> None:
        """Measure every so many steps."""
        self._every = every
        self._first = True

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Measure when the interval has passed."""
        if self._first or trainer.state.step % self._every == 0:
            self._first = False
            trainer.log.write("memory", step=trainer.state.step, **trainer.train_module.memory_breakdown())
