"""The length of a run, and the tokens of a step when nobody says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_scaling_parameters
from cpplm.optim.groups import REFERENCE_BATCH, REFERENCE_DEPTH
from cpplm.train.settings import TrainSettings, model_config

# The best batch grows with this power of the training tokens (Bergsma et al. 2025, arXiv 2505.13738).
BATCH_EXPONENT = 0.383


@dataclass(frozen=True)
class TrainingBudget:
    """The length of a run, in optimizer steps or in seconds."""

    steps: int | None = None
    seconds: float | None = None

    def progress(self, *, step: int, seconds: float) -> float:
        """From 0 at the start to 1 at the end."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        return min(1.0, seconds / (self.seconds or math.inf))


def training_budget(settings: TrainSettings, config: ModelConfig) -> TrainingBudget:
    """The length of a run: by minutes, steps, operations or tokens per parameter, whichever was given."""
    if settings.max_minutes > 0:
        return TrainingBudget(seconds=60 * settings.max_minutes)
    if settings.num_iterations > 0:
        return TrainingBudget(steps=settings.num_iterations)
    if settings.target_flops > 0:
        tokens = settings.target_flops / count_flops(config)["total"]
    else:
        tokens = settings.target_param_data_ratio * count_scaling_parameters(config)
    return TrainingBudget(steps=max(1, round(tokens / settings.total_batch_size)))


def with_batch_size(settings: TrainSettings, config: ModelConfig, ranks: int) -> TrainSettings:
    """The settings with a batch size: what was given, or what suits a model trained to its data ratio.

    That is 2^19 tokens at depth 12, and more in proportion to (training tokens)^0.383, to the nearest power
    of two, in whole forward passes of all ranks.

    Raises:
        UserError: a given batch is not a whole number of forward passes.
    """
    rows = settings.device_batch_size * settings.max_seq_len * ranks
    if settings.total_batch_size == -1:
        growth = count_scaling_parameters(config) / _reference_parameters(settings, config)
        tokens = 2 ** round(math.log2(REFERENCE_BATCH * growth**BATCH_EXPONENT))
        return replace(settings, total_batch_size=max(1, round(tokens / rows)) * rows)
    settings.check_batch(ranks)
    return settings


def relative_tokens(settings: TrainSettings, config: ModelConfig, budget: TrainingBudget) -> float | None:
    """Training tokens over those of a model of depth 12 at its ratio, where weight decay follows them; None
    otherwise, and when the clock ends the run."""
    if settings.rates.weight_decay_by != "horizon":
        return None
    if budget.steps is None or settings.target_param_data_ratio <= 0:
        return None
    reference = settings.target_param_data_ratio * _reference_parameters(settings, config)
    return budget.steps * settings.total_batch_size / reference


def _reference_parameters(settings: TrainSettings, config: ModelConfig) -> int:
    """Of the model of depth 12; what the settings name beyond its layers or heads is brought into them."""
    last, architecture = REFERENCE_DEPTH - 1, settings.architecture
    layers = tuple(sorted({min(layer, last) for layer in architecture.engram_layers}))
    start = min(architecture.dsa_start_layer, last)
    architecture = replace(architecture, engram_layers=layers, dsa_start_layer=start)
    shape = replace(settings, depth=REFERENCE_DEPTH, architecture=architecture, num_kv_heads=-1)
    reference = model_config(shape, config.vocab_size)
    if settings.num_kv_heads > 0:
        shared = math.gcd(settings.num_kv_heads, reference.num_heads)
        reference = replace(reference, num_kv_heads=shared)
    return count_scaling_parameters(reference)
