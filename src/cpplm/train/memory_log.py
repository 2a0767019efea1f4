"""What holds the memory: weights, gradients, optimizer state, and the rest, most of which is activations.

Sizes of tensors are counted, so this costs next to nothing; what a rank holds of a sharded tensor counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import psutil
import torch
from torch import Tensor

from cpplm.core.hardware import peak_memory_bytes
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
            trainer.log.write("memory", step=trainer.state.step, **memory_parts(trainer))


def memory_parts(trainer: Trainer) -> dict[str, int]:
    """Bytes by part, as `MemoryCallback` describes them."""
    device = trainer.model.device
    cuda = device.type == "cuda"
    held = torch.cuda.memory_allocated(device) if cuda else psutil.Process().memory_info().rss
    peak = max(held, peak_memory_bytes(device))  # without CUDA the system notes a peak a little late
    weights = _bytes(trainer.model.state_dict(keep_vars=True).values())
    gradients = _bytes(p for p in trainer.model.parameters() if p.requires_grad)  # gone again, but as large
    states = (value for state in trainer.optimizer.state.values() for value in state.values())
    optimizer = _bytes(value for value in states if isinstance(value, Tensor))
    return {
        "held_bytes": held,
        "peak_bytes": peak,
        "weights_bytes": weights,
        "gradients_bytes": gradients,
        "optimizer_bytes": optimizer,
        "rest_bytes": peak - weights - gradients - optimizer,
        **({"reserved_bytes": torch.cuda.memory_reserved(device)} if cuda else {}),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Sum of sizes; tensors that share their memory count once."""
    storages = {}
    for tensor in tensors:
        local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a shard of FSDP2
        storage = local.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
