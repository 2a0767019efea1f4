"""What holds the memory: weights, gradients, optimizer state, and the rest, most of which is activations.

Sizes of tensors are counted, so this costs next to nothing; what a rank holds of a sharded tensor counts.
"""

from __future__ import annotations

from cpplm.train.trainer import Callback, StepMetrics, Trainer

PARTS = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "rest_bytes")


class MemoryCallback(Callback):
    """Writes a record `memory` after the first step of a session and every so many steps.

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
