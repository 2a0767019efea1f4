"""Estimates of time and memory: `cpplm train --dry_run`, and the line that a run begins with.

Parameters, steps and operations per step (as `cpplm.model.flops` counts them) are exact; memory is partly
exact and partly estimated, see `memory_estimate`. Throughput is an assumption: the share of the devices'
peak rate that is reached (`--mfu`), which also stands for all communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.text import duration, pluralize
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_parameters
from cpplm.train.defaults import MFU, resolve_run
from cpplm.train.devices import Devices, data_sheet_devices, local_devices
from cpplm.train.memory_estimate import MemoryEstimate, MemoryPlan, estimate_memory
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget, training_budget

USABLE = 0.92  # share of a device's memory; the driver, communication buffers and fragments take the rest


@dataclass(frozen=True)
class Estimate:
    """A run's needs. Exact: parameters, accumulation, flops_per_step, of `memory` weights and
    optimizer_state, and steps and tokens where the length was given in steps."""

    parameters: int
    steps: int
    tokens: int
    accumulation: int
    flops_per_step: int
    memory: MemoryEstimate
    fits: bool
    tokens_per_second: float
    hours: float
    mfu: float
    devices: Devices

    def text(self) -> str:
        """For people."""
        memory, devices = self.memory, self.devices
        parts = (
            ("weights", memory.weights, "exact"),
            ("gathered blocks", memory.gathered, "estimate"),
            ("gradients", memory.gradients, "estimate"),
            ("optimizer state", memory.optimizer_state, "exact"),
            ("optimizer step", memory.optimizer_work, "estimate"),
            ("activations", memory.activations, "traced"),
            ("loss", memory.loss, "estimate"),
            ("peak", memory.peak, "estimate, not the sum"),
        )
        passes = pluralize(self.accumulation, "forward pass", "forward passes")
        lines = [
            f"{self.parameters:,} parameters, {devices.count} x {devices.name}",
            f"{self.steps:,} steps of {self.tokens // self.steps:,} tokens, each {passes} "
            f"per process and {self.flops_per_step:.3e} operations (exact)",
            *(f"  {name:16} {size / 1e9:9.2f} GB per process ({how})" for name, size, how in parts if size),
            f"{'fits' if self.fits else 'does not fit'}: {USABLE:.0%} of {devices.memory_bytes / 1e9:.0f} GB "
            "can be used",
            f"{self.tokens_per_second:,.0f} tokens/s, {self.hours:,.1f} hours, if {self.mfu:.0%} of the "
            f"peak rate of {devices.peak_flops / 1e12:,.2f} TFLOP/s is reached (assumed)",
        ]
        return "\n".join(lines)


def estimate(plan: MemoryPlan, devices: Devices, mfu: float, budget: TrainingBudget) -> Estimate:
    """Estimate a run of that length.

    Raises:
        UserError: a model is to be divided among one rank.
    """
    if plan.settings.shard and devices.count == 1:
        raise UserError("--shard divides a model among processes", fix="Use --world_size 2 or more.")
    flops, batch = count_flops(plan.config)["total"], plan.settings.total_batch_size
    rate = devices.tokens_per_second(flops, mfu)
    steps = budget.steps or max(1, round((budget.seconds or 0) * rate / batch))
    tokens = steps * batch
    memory = estimate_memory(plan, devices.count, device_type=devices.kind)
    return Estimate(
        parameters=count_parameters(plan.config)["total"],
        steps=steps,
        tokens=tokens,
        accumulation=plan.settings.forward_passes(devices.count),
        flops_per_step=flops * batch,
        memory=memory,
        fits=memory.peak <= USABLE * devices.memory_bytes,
        tokens_per_second=rate,
        hours=tokens / rate / 3600,
        mfu=mfu,
        devices=devices,
    )


def estimate_run(settings: TrainSettings) -> tuple[Estimate, str]:
    """Memory, steps and time of the run on `settings.dry`'s devices, and how its depth was chosen. Reads the
    tokenizer only.

    Raises:
        UserError: settings that such a run would refuse.
    """
    dry = settings.dry
    if settings.backend == "jax":
        raise UserError("--dry_run knows no TPUs", fix="'cpplm tpu check SLICE' takes the same flags.")
    if dry.gpu:
        dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
        devices = data_sheet_devices(dry.gpu, dry.world_size, dry.gpu_memory_gb)
    else:
        device = choose_device(settings.device_type)
        dtype = choose_dtype(settings.precision, device)
        devices = local_devices(device, dtype, 1)
    settings, config, reason = resolve_run(settings, devices, devices.count)
    budget = training_budget(settings, config)
    plan = MemoryPlan(settings, config, dtype)
    return estimate(plan, devices, dry.mfu, budget), reason


def describe_run(
    settings: TrainSettings,
    config: ModelConfig,
    budget: TrainingBudget,
    devices: Devices,
    memory: int | None,
    done: float,
) -> str:
    """Summary of a run in one line: model, length, devices, memory and time.

    Args:
        settings: complete, as `resolve_defaults` gives them.
        config: the model.
        budget: the length of the run.
        devices: what trains it.
        memory: bytes that one device needs at most, where that is known.
        done: the share of the run that earlier sessions have trained.
    """
    batch = settings.total_batch_size
    step_seconds = batch / devices.tokens_per_second(count_flops(config)["total"], MFU)
    seconds = budget.seconds or step_seconds * (budget.steps or 0)
    steps = budget.steps or seconds / step_seconds
    about = "" if budget.steps else "about "
    parts = [
        f"{count_parameters(config)['total']:,} parameters, depth {settings.depth}",
        f"{about}{steps:,.0f} steps of {batch:,} tokens, {steps * batch / 1e6:,.3g} M tokens",
        f"{devices.count} x {devices.name}",
    ]
    if memory is not None:
        parts.append(f"about {memory / 1e9:.2g} of {devices.memory_bytes / 1e9:.3g} GB memory")
    parts.append(f"about {duration(seconds * (1 - done))} to train, if {MFU:.0%} of the peak rate is reached")
    return "; ".join(parts)
