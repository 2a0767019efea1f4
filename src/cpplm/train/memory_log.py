"""Settings of the memory log, and the phases of a step that it tells apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from cpplm.core.errors import UserError

T = TypeVar("T")
Phase = Literal["data", "forward", "backward", "optimizer", "step", "eval", "save"]
"""Part of a step, or of what is between steps; "step" is what JAX compiles as one: passes and optimizer."""
MemoryLevel = Literal["basic", "tensors", "metrics", "hlo"]
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
        levels = get_args(MemoryLevel)
        return levels.index(level) <= levels.index(self.memory_level)


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
