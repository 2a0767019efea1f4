"""A model in PyTorch as the training loop sees it: on CPU, CUDA or MPS, on one rank or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_dtype, peak_memory_bytes
from cpplm.dataloader.loader import Batch
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend import Learner, Profiler, StepLosses, StepPlan
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.compile import LossFunction
from cpplm.train.devices import Devices, local_devices
from cpplm.train.distributed import DistContext, open_world
from cpplm.train.jax_settings import JaxSettings
from cpplm.train.memory_estimate import Plan, memory_of
from cpplm.train.settings import TrainSettings
from cpplm.train.setup import build, choose_kernels, loss_function
from cpplm.train.sharding import own_share, synchronise_gradients
from cpplm.train.torch_profiler import TorchProfiler
from cpplm.train.training_length import TrainingBudget


class TorchBackend:
    """Makes `TorchLearner`s; see `cpplm.train.backend.Backend`."""

    def __init__(self, settings: TrainSettings) -> None:
        """Nothing is touched yet.

        Raises:
            UserError: a device that PyTorch does not train on, or settings that only JAX knows.
        """
        if settings.device_type == "tpu":
            raise UserError(
                "--backend torch does not train on a TPU", fix="Use --backend jax, or another --device_type."
            )
        for name in (field.name for field in fields(JaxSettings)):
            if getattr(settings.jax, name) != getattr(JaxSettings, name):
                raise UserError(f"--{name} does nothing without --backend jax", fix="Leave it out.")
        self._device_type = settings.device_type

    def open_world(self) -> AbstractContextManager[DistContext]:
        """See `Backend`."""
        return open_world(self._device_type)

    def devices(self, settings: TrainSettings, dist: DistContext) -> Devices:
        """See `Backend`."""
        return local_devices(dist.device, choose_dtype(settings.precision, dist.device), dist.size)

    def memory(self, settings: TrainSettings, config: ModelConfig, dist: DistContext) -> int:
        """See `Backend`."""
        plan = Plan.of(settings, config, choose_dtype(settings.precision, dist.device))
        return memory_of(plan, dist.size, device_type=dist.device.type).peak

    def check(self, settings: TrainSettings, config: ModelConfig, dist: DistContext) -> dict[str, Any]:
        """See `Backend`."""
        return {"kernels": choose_kernels(settings, config, dist.device)}

    def place(self, batch: Batch) -> Batch:
        """As it is: page-locked, it is sent without blocking when its turn comes."""
        return batch

    def build(
        self,
        settings: TrainSettings,
        config: ModelConfig,
        tokenizer: Tokenizer,
        checkpoint: Checkpoint | None,
        budget: TrainingBudget,
        dist: DistContext,
    ) -> Learner:
        """See `Backend`."""
        model, optimizer = build(settings, config, tokenizer, checkpoint, budget, dist)
        return TorchLearner(model, optimizer, loss_function(settings, model), dist)


class TorchLearner:
    """See `cpplm.train.backend.Learner`. `losses` is `model.training_losses`, possibly compiled."""

    def __init__(
        self, model: Transformer, optimizer: MuonAdamW, losses: LossFunction, dist: DistContext
    ) -> None:
        self.model = model
        self._optimizer = optimizer
        self._losses = losses
        self._world = dist

    @property
    def config(self) -> ModelConfig:
        """See `Learner`."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """See `Learner`."""
        return self.model.device

    @property
    def kind(self) -> str:
        """See `Learner`."""
        return self.model.device.type

    @property
    def precision(self) -> str:
        """See `Learner`."""
        return str(self.model.compute_dtype).removeprefix("torch.")

    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        """See `Learner`."""
        optimizer = self._optimizer
        optimizer.lr_multiplier = plan.learning_rate
        optimizer.muon_momentum = plan.momentum
        optimizer.weight_decay_multiplier = plan.weight_decay
        self.model.dense_attention = plan.dense_attention
        parts = self._forward_backward(batches, count, plan.multi_token_weight)
        total, next_token, multi_token, indexer = self._world.mean(parts).tolist()
        optimizer.step()
        norm = float(optimizer.gradient_norm)
        optimizer.zero_grad(set_to_none=True)
        return StepLosses(total, next_token, multi_token, indexer, norm)

    def _forward_backward(self, batches: Iterator[Batch], count: int, multi_token_weight: float) -> Tensor:
        """Gradients of this rank's share of the batch.

        Returns:
            The mean losses: total, next token, multi token, indexer.
        """
        device = self.model.device
        weight, parts = torch.tensor(multi_token_weight, device=device), torch.zeros(4, device=device)
        for number, batch in enumerate(batches, start=1):
            inputs_BT = batch.inputs.to(device, non_blocking=True)
            targets_BT = batch.targets.to(device, non_blocking=True)
            documents = batch.documents
            documents_BT = None if documents is None else documents.to(device, non_blocking=True)
            synchronise_gradients(self.model, number == count)
            losses = self._losses(inputs_BT, targets_BT, weight, documents_BT)
            (losses.total / count).backward()
            parts += torch.stack([part.detach() for part in losses]) / count
        return parts

    def loss(self, ids_BT: Tensor, targets_BT: Tensor, reduction: Literal["none"]) -> Tensor:
        """See `Learner`."""
        return self.model.loss(ids_BT, targets_BT, reduction)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See `Learner`: gathered from all ranks."""
        return own_share(self.model, self._world), self._optimizer.named_state(own_share=True)

    def peak_memory(self) -> int:
        """See `Learner`."""
        return peak_memory_bytes(self.device)

    def memory(self) -> dict[str, int]:
        """See `Learner`; what this rank holds of a sharded tensor counts."""
        device = self.device
        cuda = device.type == "cuda"
        held = torch.cuda.memory_allocated(device) if cuda else psutil.Process().memory_info().rss
        peak = max(held, peak_memory_bytes(device))  # without CUDA the system notes a peak a little late
        weights = _bytes(self.model.state_dict(keep_vars=True).values())
        gradients = _bytes(p for p in self.model.parameters() if p.requires_grad)  # gone again, but as large
        states = (value for state in self._optimizer.state.values() for value in state.values())
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

    def profiler(self, path: Path) -> Profiler:
        """See `Learner`."""
        return TorchProfiler(path, self.device)


def torch_model(learner: Learner) -> Transformer:
    """The PyTorch model that is being trained.

    Raises:
        TypeError: the learner is of another backend.
    """
    if not isinstance(learner, TorchLearner):
        raise TypeError(f"{type(learner).__name__} has no PyTorch model")
    return learner.model


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Sum of sizes; tensors that share their memory count once."""
    storages = {}
    for tensor in tensors:
        local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a shard of FSDP2
        storage = local.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
