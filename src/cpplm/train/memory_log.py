"""Settings of the memory log, and the memory of each phase of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from cpplm.core.errors import UserError

T = TypeVar("T")
Phase = Literal["data", "forward", "backward", "optimizer", "step", "eval", "save"]
"""Part of a step, or of what is between steps; "step" is what JAX compiles as one: passes and optimizer."""
MemoryLevel = Literal["basic", "tensors", "metrics", "hlo"]
MEMORY_LEVELS: tuple[MemoryLevel, ...] = ("basic", "tensors", "metrics", "hlo")
MEMORY_PARTS = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "rest_bytes")


@dataclass(frozen=True)
class MemoryLogSettings:
    """Settings of the memory log."""

    memory_every: int = 250
    """Log memory after the first step, every so many steps, validations and saves (-1 = never)."""
    memory_level: MemoryLevel = "tensors"
    """basic: held and most in each phase; tensors: also weights, gradients, optimizer state, and what all
    logits and attention scores of a pass would take; metrics: also compiled graphs; hlo: also the text of
    the programs that JAX compiled, in OUT/profiles."""

    def __post_init__(self) -> None:
        if not (self.memory_every > 0 or self.memory_every == -1):
            raise UserError(
                f"--memory_every {self.memory_every}", fix="Use a positive number, or -1 to leave it out."
            )
        if self.memory_every == -1 and self.memory_level != type(self).memory_level:
            raise UserError("--memory_level does nothing with --memory_every -1", fix="Leave one out.")

    def includes(self, level: MemoryLevel) -> bool:
        """True if that is logged."""
        return MEMORY_LEVELS.index(level) <= MEMORY_LEVELS.index(self.memory_level)


class PhaseRecorder:
    """Told of each phase; this one takes no notice."""

    def record(self, phase: Phase) -> AbstractContextManager[None]:
        """Within the block that phase is under way."""
        del phase
        return nullcontext()

    def record_each(self, phase: Phase, items: Iterator[T]) -> Iterator[T]:
        """The same items; the phase is under way while one is made."""
        while True:
            with self.record(phase):
                item = next(items, None)
            if item is None:
                return
            yield item


class DeviceMemory(Protocol):
    """The memory of a device."""

    def held_memory(self) -> int:
        """Bytes held now."""

    def peak_memory(self, *, since_reset: bool = False) -> int:
        """Most bytes held so far, or since `reset_peak_memory`."""

    def reset_peak_memory(self) -> bool:
        """Begin to look for a new peak; False where that does not work."""


class MemoryRecorder(PhaseRecorder):
    """Notes what is held when a phase ends, and the most within it, where the system counts that anew.

    `active` is whether it looks at the phases of a step, which cost some system calls each; measurements and
    saves it looks at always. Of several passes of a step the largest counts.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        """Nothing is noted yet."""
        self.active = True
        self._memory = memory
        self._phases: dict[Phase, dict[str, int]] = {}

    def record(self, phase: Phase) -> AbstractContextManager[None]:
        """Note one phase."""
        return self._record(phase) if self.active or phase in ("eval", "save") else nullcontext()

    @contextmanager
    def _record(self, phase: Phase) -> Iterator[None]:
        counts_anew = self._memory.reset_peak_memory()
        yield
        held = self._memory.held_memory()
        found = {"held_bytes": held}
        if counts_anew:
            found["peak_bytes"] = max(held, self._memory.peak_memory(since_reset=True))
        before = self._phases.get(phase, {})
        self._phases[phase] = {name: max(value, before.get(name, 0)) for name, value in found.items()}

    def take(self) -> dict[Phase, dict[str, int]]:
        """Figures noted since the last call, by phase."""
        phases, self._phases = self._phases, {}
        return phases
