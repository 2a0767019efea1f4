"""Estimates of time and memory: `cpplm train --dry_run`, and the line that a run begins with."""

from __future__ import annotations

import torch

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_parameters
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.defaults import MFU, resolve_defaults
from cpplm.train.devices import Devices, data_sheet_devices, local_devices
from cpplm.train.estimate import Estimate, estimate
from cpplm.train.memory_estimate import MemoryPlan
from cpplm.train.settings import TrainSettings, model_config
from cpplm.train.training_length import TrainingBudget, training_budget


def estimate_run(settings: TrainSettings) -> tuple[Estimate, str]:
    """Memory, steps and time of the run on `settings.dry`'s devices, and how its depth was chosen. Reads the
    tokenizer only.

    Raises:
        UserError: settings that such a run would refuse.
    """
    dry = settings.dry
    if settings.backend == "jax":
        raise UserError("--dry_run knows no TPUs", fix="'cpplm tpu check' compiles the step for them.")
    if dry.gpu:
        dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
        devices = data_sheet_devices(dry.gpu, dry.world_size, dry.gpu_memory_gb)
    else:
        device = choose_device(settings.device_type)
        dtype = choose_dtype(settings.precision, device)
        devices = local_devices(device, dtype, 1)
    vocab_size = Tokenizer.load(settings.tokenizer).vocab_size
    settings, reason = resolve_defaults(settings, vocab_size, devices, devices.count)
    config = model_config(settings, vocab_size)
    budget = training_budget(settings, config)
    plan = MemoryPlan.of(settings, config, dtype)
    return estimate(plan, devices, dry.mfu, steps=budget.steps, seconds=budget.seconds), reason


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
        horizon: the length of the run.
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
    parts.append(
        f"about {_duration(seconds * (1 - done))} to train, if {MFU:.0%} of the peak rate is reached"
    )
    return "; ".join(parts)


def _duration(seconds: float) -> str:
    unit, size = ("hours", 3600) if seconds >= 5400 else ("minutes", 60) if seconds >= 90 else ("s", 1)
    return f"{seconds / size:,.1f} {unit}"
