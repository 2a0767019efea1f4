"""`cpplm train --dry_run`: what the settings would take on hardware that is not here."""

from __future__ import annotations

import torch

from cpplm.core.errors import UserError
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.estimate import Estimate, estimate
from cpplm.train.horizon import horizon_of, with_batch_size
from cpplm.train.memory import Plan
from cpplm.train.settings import TrainSettings, model_config


def estimate_run(settings: TrainSettings) -> Estimate:
    """Memory, steps and time of the run on `settings.dry`'s devices. Reads the tokenizer only.

    Raises:
        UserError: settings that such a run would refuse.
    """
    if settings.backend == "jax":
        raise UserError("--dry_run knows GPUs only", fix="'cpplm tpu check' compiles the step for TPUs.")
    config = model_config(settings, Tokenizer.load(settings.tokenizer).vocab_size)
    settings = with_batch_size(settings, config, settings.dry.world_size)
    horizon = horizon_of(settings, config)
    plan = Plan(
        config=config,
        kernels=settings.kernels,
        compute_dtype=torch.float32 if settings.precision == "fp32" else torch.bfloat16,
        device_batch_size=settings.device_batch_size,
        total_batch_size=settings.total_batch_size,
        shard=settings.shard,
        normuon=settings.rates.muon_beta2 > 0,
    )
    return estimate(plan, settings.dry, steps=horizon.steps, seconds=horizon.seconds)
