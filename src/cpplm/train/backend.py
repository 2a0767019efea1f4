"""The seam between the training loop and the library that trains: `TrainBackend` and `TrainModule`.

`cpplm.train.torch_backend` implements them with PyTorch, `cpplm.jax.backend` with JAX.

All else of training (loop, callbacks, data, schedules, metrics, checkpoints, log, page) is written once and
knows a run's model and optimizer as a `TrainModule` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from cpplm.core.hardware import held_memory_bytes, peak_memory_bytes, reset_peak_memory
from cpplm.dataloader.loader import Batch
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.devices import Devices
from cpplm.train.distributed import DistContext
from cpplm.train.memory_log import PhaseRecorder
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget

if TYPE_CHECKING:
    from cpplm.train.attempt import Attempt


@dataclass(frozen=True)
class StepPlan:
    """The values of the schedules for one optimizer step. Multipliers are of the groups' own rates."""

    learning_rate: float
    weight_decay: float
    momentum: float
    """Muon's."""
    multi_token_weight: float
    """Weight of the mean loss of the heads that predict further tokens."""
    dense_attention: bool
    """Sparse layers attend to everything, as in the warm-up of their indexers."""
    progress: float = 0.0
    """Share of the run that is done."""


@dataclass(frozen=True)
class StepLosses:
    """Means over the batch of all ranks, in nats per token, and the norm of the whole gradient.

    `multi_token` and `indexer` are 0 for a model that does not have them.
    """

    total: float
    next_token: float
    multi_token: float
    indexer: float
    gradient_norm: float


class Profiler(Protocol):
    """Takes one trace."""

    path: Path
    """The file of the trace."""

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: another profiler holds the device.
        """

    def stop(self) -> list[dict[str, Any]]:
        """End, write the trace and give the operations that took most time, if the tracer says.

        Raises:
            RuntimeError, OSError: nothing was written then.
        """


class TrainModule(Protocol):
    """A model, its optimizer and its loss on the devices of this rank. All ranks call all methods alike."""

    config: ModelConfig
    """The shape of the model."""
    device: torch.device
    """The device on which `loss` wants its batches."""
    device_type: str
    """The kind of device: "cpu", "cuda", "mps" or "tpu"."""
    precision: str
    """The dtype of matrix products, by name."""
    adapter_config: dict[str, Any] | None = None
    """Of a LoRA adapter, which is all that `state` then gives: its record in PEFT's format."""

    quantization: dict[str, Any] | None = None
    """Of rounded weights: what `quantization.json` of a checkpoint says of them."""

    phases: PhaseRecorder = PhaseRecorder()
    """Told of the phases of each step."""

    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        """One optimizer step over the gradients of the `count` batches that `batches` gives."""

    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy of each next token in nats, BT; 0 where the target is `IGNORE_INDEX`."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and optimizer state by the names that checkpoints use: of each process some, whole, and of
        all of them together everything once. They may change with the next step."""

    def held_memory(self) -> int:
        """Bytes held now."""
        return held_memory_bytes(self.device)

    def peak_memory(self, *, since_reset: bool = False) -> int:
        """Most bytes held so far, or since `reset_peak_memory`."""
        return peak_memory_bytes(self.device, since_reset=since_reset)

    def reset_peak_memory(self) -> bool:
        """Begin to look for a new peak; False where that does not work."""
        return reset_peak_memory(self.device)

    def memory_capacity(self) -> dict[str, int]:
        """Bytes of one device in all, and on CUDA those that the allocator took from it."""

    def memory_breakdown(self) -> dict[str, int]:
        """Bytes by what holds them, as `cpplm.train.profiling.MemoryCallback` lists them."""

    def compiled_graphs(self) -> int:
        """Programs that were compiled so far."""

    def program_texts(self) -> dict[str, str]:
        """The compiled programs as text, by name; only of JAX."""
        return {}

    def profiler(self, path: Path) -> Profiler:
        """One that has not begun; it adds its own ending to `path`."""


class TrainBackend(Protocol):
    """One library that trains. But for `init_distributed`, all methods want the processes joined by it."""

    def init_distributed(self) -> AbstractContextManager[DistContext]:
        """The processes that train together; see `cpplm.train.distributed.init_distributed`."""

    def sync_compile_cache(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Within the block, share compiled programs with the run's other machines; by default do not."""
        return nullcontext()

    def devices(self, settings: TrainSettings) -> Devices:
        """The devices of all processes."""

    def estimate_memory(self, settings: TrainSettings, config: ModelConfig) -> int | None:
        """Bytes that training needs at most on one device, estimated; None if nothing estimates them."""

    def check(self, settings: TrainSettings, config: ModelConfig) -> dict[str, Any]:
        """Refuse what cannot run, before anything is written; what will run, for the log.

        Raises:
            UserError: settings that this backend does not know, or that do not fit the devices.
        """

    def to_device(self, batch: Batch) -> Batch:
        """Send a batch to the devices now; called in another thread, ahead of the step."""

    def build(
        self,
        settings: TrainSettings,
        config: ModelConfig,
        tokenizer: Tokenizer,
        weights: Checkpoint | None,
        optimizer: Checkpoint | None,
        budget: TrainingBudget,
    ) -> TrainModule:
        """A module with weights and optimizer state of checkpoints of either backend, or with new ones."""
