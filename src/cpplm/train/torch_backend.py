"""A model in PyTorch as the training loop sees it: on CPU, CUDA or MPS, on one rank or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_dtype
from cpplm.core.progress import log_info
from cpplm.dataloader.loader import Batch
from cpplm.model.config import ModelConfig
from cpplm.model.lora import (
    ADAPTER_WEIGHTS,
    adapter_config,
    adapter_tensors,
    add_lora,
    check_targets,
    load_adapter,
)
from cpplm.model.multi_token import count_targets
from cpplm.model.transformer import Transformer
from cpplm.optim.buckets import StepRates, local
from cpplm.optim.groups import build_lora_optimizer, build_optimizer
from cpplm.optim.muon import MuonAdamW
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend import Profiler, StepLosses, StepPlan, TrainBackend, TrainModule
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_tensors
from cpplm.train.compile import LossFunction
from cpplm.train.devices import Devices, local_devices
from cpplm.train.distributed import SINGLE_PROCESS, DistContext, init_distributed
from cpplm.train.memory_estimate import MemoryPlan, estimate_memory
from cpplm.train.quantization import Quantizer, frozen_scales_of, is_quantized
from cpplm.train.settings import JaxSettings, TrainSettings
from cpplm.train.setup import build_model, choose_kernels, loss_function
from cpplm.train.sharding import local_state_dict, set_gradient_sync
from cpplm.train.torch_profiler import TorchProfiler
from cpplm.train.training_length import TrainingBudget, relative_tokens


class TorchBackend(TrainBackend):
    """Makes `TorchTrainModule`s."""

    def __init__(self, settings: TrainSettings) -> None:
        """Nothing is touched yet.

        Raises:
            UserError: a device that PyTorch does not train on, or settings that only JAX knows.
        """
        if settings.device_type == "tpu":
            raise UserError(
                "--backend torch does not train on a TPU", fix="Use --backend jax, or another --device_type."
            )
        names = [
            f"--{field.name}"
            for field in fields(JaxSettings)
            if getattr(settings.jax, field.name) != field.default
        ]
        names += ["--memory_level hlo"] if settings.memory.includes("hlo") else []
        if names:
            raise UserError(f"{names[0]} does nothing without --backend jax", fix="Leave it out.")
        self._device_type = settings.device_type
        self._dist = SINGLE_PROCESS

    @override
    @contextmanager
    def init_distributed(self) -> Iterator[DistContext]:
        with init_distributed(self._device_type) as self._dist:
            yield self._dist

    @override
    def devices(self, settings: TrainSettings) -> Devices:
        return local_devices(
            self._dist.device, choose_dtype(settings.precision, self._dist.device), self._dist.world_size
        )

    @override
    def estimate_memory(self, settings: TrainSettings, config: ModelConfig) -> int | None:
        plan = MemoryPlan(settings, config, choose_dtype(settings.precision, self._dist.device))
        return estimate_memory(plan, self._dist.world_size, device_type=self._dist.device.type).peak

    @override
    def check(self, settings: TrainSettings, config: ModelConfig) -> dict[str, Any]:
        if settings.lora.lora_rank:
            check_targets(config, settings.lora)
        return {"kernels": choose_kernels(settings, config, self._dist.device)}

    @override
    def to_device(self, batch: Batch) -> Batch:
        return batch  # page-locked, it is sent without blocking when its turn comes

    @override
    def build(
        self,
        settings: TrainSettings,
        config: ModelConfig,
        tokenizer: Tokenizer,
        weights: Checkpoint | None,
        optimizer: Checkpoint | None,
        budget: TrainingBudget,
    ) -> TrainModule:
        if settings.lora.lora_rank:
            return self._build_adapter(settings, config, tokenizer, optimizer)
        model = build_model(settings, config, tokenizer, weights, self._dist)

        def make_optimizer() -> MuonAdamW:
            return build_optimizer(
                model,
                settings.rates,
                batch_tokens=settings.total_batch_size,
                budget=relative_tokens(settings, config, budget),
                scale_lr=settings.quantization.scale_lr,
                process_group=self._dist.process_group,
            )

        optimizer_of_model = make_optimizer()
        if optimizer is not None:
            optimizer_of_model.load_named_state(load_tensors(optimizer, "optimizer.safetensors"))
        module = self._module(model, optimizer_of_model, settings)
        if settings.quantization.quantize:
            module.quantizer = Quantizer(settings, make_optimizer)
            if weights is not None and is_quantized(model):
                module.quantizer.frozen_scales = frozen_scales_of(weights)
        return module

    def _module(self, model: Transformer, optimizer: MuonAdamW, settings: TrainSettings) -> TorchTrainModule:
        """The module; of an adapter, too."""
        return TorchTrainModule(model, optimizer, loss_function(settings, model), self._dist)

    def _build_adapter(
        self, settings: TrainSettings, config: ModelConfig, tokenizer: Tokenizer, earlier: Checkpoint | None
    ) -> TrainModule:
        """The model of --init_from with an adapter, new or from an `earlier` checkpoint of the same run."""
        model = build_model(settings, config, tokenizer, open_parent(settings.init_from), self._dist)
        add_lora(model, settings.lora, seed=settings.seed)
        optimizer = build_lora_optimizer(
            model, settings.lora.lora_lr, settings.rates, process_group=self._dist.process_group
        )
        if earlier is not None:
            load_adapter(model, load_tensors(earlier, ADAPTER_WEIGHTS))
            optimizer.load_named_state(load_tensors(earlier, "optimizer.safetensors"))
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        log_info(f"LoRA of rank {settings.lora.lora_rank}: {trained:,} parameters are trained")
        module = self._module(model, optimizer, settings)
        module.adapter_config = adapter_config(model, settings.lora)
        return module


class TorchTrainModule(TrainModule):
    """A transformer with its optimizer; `losses` is `model.training_losses`, possibly compiled."""

    quantizer: Quantizer | None = None
    """Rounds the weights, where they are to be."""

    def __init__(
        self, model: Transformer, optimizer: MuonAdamW, losses: LossFunction, dist: DistContext
    ) -> None:
        self.model = model
        self._optimizer = optimizer
        self._losses = losses
        self._dist = dist
        self.config, self.device, self.device_type = model.config, model.device, model.device.type
        self.precision = str(model.compute_dtype).removeprefix("torch.")

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        passes = list(batches)
        self._quantize_when_due(plan, passes)
        self._set_plan(plan)
        self.model.dense_attention = plan.dense_attention
        parts = self._forward_backward(passes, count, plan.multi_token_weight)
        total, next_token, multi_token, indexer = self._dist.mean(parts).tolist()
        return StepLosses(total, next_token, multi_token, indexer, self._update())

    def _quantize_when_due(self, plan: StepPlan, passes: list[Batch]) -> None:
        if self.quantizer is not None and self.quantizer.is_due(self.model, plan.progress):
            self._optimizer = self.quantizer.quantize(self.model, self._optimizer, passes, self._dist)
            self._losses = self.compile_losses()

    def freeze_scales(self, target: str) -> None:
        """Train the scales of rounded weights no further; `target` as of `moving_scales`."""
        assert self.quantizer is not None  # noqa: S101  (there are none without)
        self._optimizer = self.quantizer.freeze_scales(self.model, self._optimizer, target)
        self._losses = self.compile_losses()

    def compile_losses(self) -> LossFunction:
        """The loss function of the model as it is now."""
        assert self.quantizer is not None  # noqa: S101  (nothing else changes a model)
        return loss_function(self.quantizer.settings, self.model)

    @property
    @override
    def quantization(self) -> dict[str, Any] | None:  # type: ignore[override]
        return None if self.quantizer is None else self.quantizer.record(self.model)

    def _set_plan(self, plan: StepPlan) -> None:
        self._optimizer.rates = StepRates(plan.learning_rate, plan.weight_decay, plan.momentum)

    def _update(self) -> float:
        """Change the weights by their gradients, which are gone then; the norm of these."""
        with self.phases.record("optimizer"):
            self._optimizer.step()
            norm = float(self._optimizer.gradient_norm)
            self._optimizer.zero_grad(set_to_none=True)
        return norm

    def _forward_backward(self, passes: list[Batch], count: int, multi_token_weight: float) -> Tensor:
        """Gradients of this rank's share of the batch.

        Returns:
            The mean losses: total, next token, multi token, indexer.
        """
        device = self.model.device
        weight, parts = torch.tensor(multi_token_weight, device=device), torch.zeros(4, device=device)
        shares = self._target_shares(passes)
        for number, batch in enumerate(passes, start=1):
            inputs_BT = batch.inputs.to(device, non_blocking=True)
            targets_BT = batch.targets.to(device, non_blocking=True)
            documents = batch.documents
            documents_BT = None if documents is None else documents.to(device, non_blocking=True)
            set_gradient_sync(self.model, number == count)
            with self.phases.record("forward"):
                losses = self._losses(inputs_BT, targets_BT, weight, documents_BT, shares[number - 1])
            with self.phases.record("backward"):
                (losses.total / count).backward()
            parts += torch.stack([part.detach() for part in losses]) / count
        return parts

    def _target_shares(self, passes: list[Batch]) -> Tensor:
        """Targets of each pass over their mean number in all passes of all ranks, shape (passes, 1 + heads).

        The mean over passes and ranks of losses with these factors is the mean over all targets, wherever
        those that do not count lie.
        """
        heads = len(self.model.multi_token)
        counts = torch.stack([count_targets(batch.targets, heads) for batch in passes])
        mean = (
            self._dist.mean(counts.mean(0).to(self.device)) if self._dist.world_size > 1 else counts.mean(0)
        )
        return (counts.to(mean.device) / mean.clamp(min=1e-9)).float().to(self.device)

    @override
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return self.model.loss(ids_BT, targets_BT, "none")

    @override
    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gather both from all ranks."""
        weights = local_state_dict(self.model, self._dist)
        if self.adapter_config is not None:
            weights = adapter_tensors(weights)
        return weights, self._optimizer.named_state(partitioned=True)

    @override
    def memory_capacity(self) -> dict[str, int]:
        device = self.device
        if device.type != "cuda":
            return {"total_bytes": psutil.virtual_memory().total}
        total = torch.cuda.get_device_properties(device).total_memory
        return {"total_bytes": total, "reserved_bytes": torch.cuda.memory_reserved(device)}

    @override
    def memory_breakdown(self) -> dict[str, int]:
        """Count what this rank holds; of a sharded tensor, its shard."""
        states = (value for state in self._optimizer.state.values() for value in state.values())
        return {
            # Not state_dict(), whose hooks shard a model again: the other ranks, which log nothing, do not.
            "weights_bytes": _bytes((*self.model.parameters(), *self.model.buffers())),
            # Gone again between steps, but as large as this.
            "gradients_bytes": _bytes(p for p in self.model.parameters() if p.requires_grad),
            "optimizer_bytes": _bytes(value for value in states if isinstance(value, Tensor)),
        }

    @override
    def compiled_graphs(self) -> int:
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    @override
    def profiler(self, path: Path) -> Profiler:
        return TorchProfiler(path, self.device)


def torch_model(train_module: TrainModule) -> Transformer:
    """The PyTorch model that is being trained.

    Raises:
        TypeError: the module is of another backend.
    """
    if not isinstance(train_module, TorchTrainModule):
        raise TypeError(f"{type(train_module).__name__} has no PyTorch model")
    return train_module.model


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Sum of sizes; tensors that share their memory count once."""
    storages = {}
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
