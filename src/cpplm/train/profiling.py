"""The cost of a step: traces of its operations, planned or asked of a running job, and what holds its memory.

`touch RUN/profile` traces the next three steps of a run that is going on: a file works wherever the folder
does (other hosts, containers), and, unlike a signal, cannot end a process that does not expect it. When no
trace is taken a step costs one look for that file. Writing a trace stops the run for about a second per
20,000 operations in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cpplm.core.progress import log_info
from cpplm.core.storage import Storage
from cpplm.train.backend import Profiler, TrainModule
from cpplm.train.memory_log import MemoryLogSettings, Phase, PhaseRecorder
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback, StepMetrics, Trainer

REQUEST = "profile"  # the file whose appearance asks for a trace
FOLDER = "profiles"
PROFILED_STEPS = 3


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
        self._begin_if_requested(trainer)

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """End a trace that has its steps; begin one that was asked for."""
        if self._profiler is not None and trainer.state.step >= self._begun_at + PROFILED_STEPS - 1:
            self._end(trainer, self._profiler)
        if self._profiler is None:
            self._begin_if_requested(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Write what a trace has so far."""
        if self._profiler is not None:
            self._end(trainer, self._profiler)

    def _begin_if_requested(self, trainer: Trainer) -> None:
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


class MemoryRecorder(PhaseRecorder):
    """Notes what is held when a phase ends, and the most within it, where the system counts that anew.

    `active` is whether it looks at the phases of a step, which cost some system calls each; measurements and
    saves it looks at always. Of several passes of a step the largest counts.
    """

    def __init__(self, module: TrainModule) -> None:
        """Nothing is noted yet."""
        self.active = True
        self._module = module
        self._phases: dict[Phase, dict[str, int]] = {}

    def record(self, phase: Phase) -> AbstractContextManager[None]:
        """Note one phase."""
        return self._record(phase) if self.active or phase in ("eval", "save") else nullcontext()

    @contextmanager
    def _record(self, phase: Phase) -> Iterator[None]:
        counts_anew = self._module.reset_peak_memory()
        yield
        held = self._module.held_memory()
        found = {"held_bytes": held}
        if counts_anew:
            found["peak_bytes"] = max(held, self._module.peak_memory(since_reset=True))
        before = self._phases.get(phase, {})
        self._phases[phase] = {name: max(value, before.get(name, 0)) for name, value in found.items()}

    def take(self) -> dict[Phase, dict[str, int]]:
        """Figures noted since the last call, by phase."""
        phases, self._phases = self._phases, {}
        return phases


class MemoryCallback(Callback):
    """Writes a record `memory` at the start, after the first step, every so many, validations and saves.

    Sizes of tensors are counted, so this costs next to nothing; what a rank holds of a sharded tensor counts.

    `held_bytes` is what the run holds between steps (on CUDA in tensors, else in the whole process),
    `peak_bytes` the most so far, and the parts sum to the peak: `rest_bytes` is what is neither weight,
    gradient nor optimizer state, without CUDA the program itself included. `reserved_bytes`, on CUDA only, is
    what the allocator took from the device. `phases` has the same of each phase, its peak where the system
    counts that anew: a TPU does not. `when` is "init", "warmup" (the first step, which compiles) or "train".
    """

    _recorder: MemoryRecorder
    """Of the module that is trained, from the start on."""

    def __init__(self, settings: MemoryLogSettings) -> None:
        """Nothing is measured yet."""
        self._settings = settings
        self._when = "init"

    def on_start(self, trainer: Trainer) -> None:
        """Look at the first step."""
        self._recorder = trainer.train_module.phases = MemoryRecorder(trainer.train_module)
        if self._settings.includes("hlo"):
            storage = Storage(trainer.settings.out / FOLDER, create=True)
            for name, text in trainer.train_module.program_texts().items():
                storage.write(f"{name}.hlo.txt", text.encode())
        self._write(trainer)
        self._when = "warmup"

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Write what was noted; look at the next step when its turn comes."""
        self._write(trainer)
        self._recorder.active = (trainer.state.step + 1) % self._settings.memory_every == 0
        self._when = "train"

    def on_end(self, trainer: Trainer) -> None:
        """Write what the last validation and save took."""
        self._recorder.active = False
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        phases, module = self._recorder.take(), trainer.train_module
        if not self._recorder.active and not phases:
            return
        held = module.held_memory()
        peak = max(held, module.peak_memory())  # without CUDA other threads may allocate meanwhile
        record: dict[str, Any] = {"held_bytes": held, "peak_bytes": peak}
        record |= module.memory_capacity()
        if self._settings.includes("tensors"):
            parts = module.memory_breakdown()
            record |= {**parts, "rest_bytes": peak - sum(parts.values())} | self._estimates(trainer)
        if self._settings.includes("metrics"):
            record["compiled_graphs"] = module.compiled_graphs()
        trainer.log.write("memory", step=trainer.state.step, when=self._when, phases=phases, **record)

    @staticmethod
    def _estimates(trainer: Trainer) -> dict[str, int]:
        """Bytes of all logits and attention scores of a pass in float32, which most kernels never hold."""
        settings, config = trainer.settings, trainer.train_module.config
        tokens = settings.device_batch_size * settings.max_seq_len
        heads = getattr(config, "num_heads", 0)  # not of a model of transformers
        scores = {"attention_bytes": 4 * heads * tokens * settings.max_seq_len} if heads else {}
        return {"logits_bytes": 4 * tokens * config.vocab_size, **scores}


def diagnostic_callbacks(settings: TrainSettings) -> list[Callback]:
    """Profiles and memory of the first rank's process."""
    callbacks: list[Callback] = [ProfileCallback(settings.out, settings.profile_step)]
    if settings.memory.memory_every > 0:
        callbacks.append(MemoryCallback(settings.memory))
    return callbacks
