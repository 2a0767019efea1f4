"""Values of settings that are left at -1: on GPUs and TPUs fixed values, on a CPU what it can compute.

They are chosen once per run: a continued run takes them from its checkpoint, so that its steps and its
validation stay what they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_scaling_parameters
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.devices import Devices
from cpplm.train.settings import MAX_SEQ_LEN, DryRunSettings, TrainSettings, model_config
from cpplm.train.training_length import with_batch_size

RESOLVED_SETTINGS = ("max_seq_len", "depth", "total_batch_size", "eval_tokens", "device_batch_size")
"""The settings that are chosen here."""
DEPTH, DEVICE_BATCH_SIZE, EVAL_TOKENS = 20, 32, 20 * 524_288
MFU = DryRunSettings.mfu  # seen on a CPU: 0.34 to 0.45 (`make demo`)
# On a CPU.
LEAST_DEPTH = 2
LEAST_EVAL_TOKENS = 40_960
MINUTES = 240.0  # that a run may take when nobody says
_PASS_SECONDS = 1.0  # of a forward and backward pass, between two of which a stop is heard
_VALIDATION_SECONDS = 10.0


def resolve_defaults(
    settings: TrainSettings,
    vocab_size: int,
    devices: Devices,
    shares: int,
    earlier: Mapping[str, Any] | None = None,
    parent: ModelConfig | None = None,
) -> tuple[TrainSettings, str]:
    """The settings with every one of `RESOLVED_SETTINGS`, and how the depth was chosen, if worth a line.

    Args:
        settings: as given; what is not -1 stays.
        vocab_size: of the tokenizer.
        devices: that train.
        shares: so many times `device_batch_size` rows all processes compute at once.
        earlier: the settings of the checkpoint that the run continues.
        parent: the model that it starts from.

    Raises:
        UserError: a given batch is not a whole number of forward passes.
    """
    earlier = earlier or {}
    adopted = {
        name: earlier[name]
        for name in RESOLVED_SETTINGS[:-1]
        if name in earlier and getattr(settings, name) == -1
    }
    settings, reason = replace(settings, **adopted), ""
    if settings.max_seq_len == -1:
        settings = replace(settings, max_seq_len=parent.max_seq_len if parent else MAX_SEQ_LEN)
    if settings.depth == -1 and parent is not None:
        settings = replace(settings, depth=parent.num_layers)
    elif settings.depth == -1 and devices.kind == "cpu":
        settings, reason = _with_depth(settings, vocab_size, devices)
    elif settings.depth == -1:
        settings = replace(settings, depth=DEPTH)
    config = model_config(settings, vocab_size, parent)
    return resolve_batch(settings, config, devices, shares, earlier), reason


def resolve_run(
    settings: TrainSettings, devices: Devices, shares: int
) -> tuple[TrainSettings, ModelConfig, str]:
    """The settings of a run that has not begun, complete, its model, and how the depth was chosen.

    Arguments and errors are those of `resolve_defaults`; the tokenizer and the parent are opened here.
    """
    vocab_size = Tokenizer.load(settings.tokenizer).vocab_size
    parent = open_parent(settings.init_from).config() if settings.init_from else None
    settings, reason = resolve_defaults(settings, vocab_size, devices, shares, parent=parent)
    return settings, model_config(settings, vocab_size, parent), reason


def resolve_batch(
    settings: TrainSettings,
    config: ModelConfig,
    devices: Devices,
    shares: int,
    earlier: Mapping[str, Any],
    max_pass_tokens: float = math.inf,
) -> TrainSettings:
    """The settings with batches and validation tokens, for a model that is known; see `resolve_defaults`.

    Args:
        settings, config, devices, shares, earlier: see there.
        max_pass_tokens: tokens of a forward pass, if nobody says.
    """
    rate = devices.tokens_per_second(count_flops(config)["total"], MFU)
    pass_tokens, validation_tokens = max_pass_tokens, math.inf
    if devices.kind == "cpu":  # a forward pass alone is a third of the operations of training
        pass_tokens = min(pass_tokens, rate / devices.count * _PASS_SECONDS)
        validation_tokens = 3 * rate * _VALIDATION_SECONDS
    if settings.device_batch_size == -1:
        limit = earlier.get("device_batch_size", pass_tokens / settings.max_seq_len)
        settings = replace(settings, device_batch_size=_rows(settings, shares, limit))
    settings = with_batch_size(settings, config, shares)
    if settings.eval_tokens == -1:
        settings = replace(settings, eval_tokens=_eval_tokens(validation_tokens))
    return settings


def _with_depth(settings: TrainSettings, vocab_size: int, devices: Devices) -> tuple[TrainSettings, str]:
    """The deepest model that sees its share of tokens per parameter in the time there is, and the reason."""
    given = settings.max_minutes > 0
    minutes = settings.max_minutes if given else MINUTES
    ratio = settings.target_param_data_ratio
    ratio = ratio if ratio > 0 else TrainSettings.target_param_data_ratio
    models = _models(settings, vocab_size)
    deepest, fits = min(models), False
    for depth, config in models.items():
        rate = devices.tokens_per_second(count_flops(config)["total"], MFU)
        if ratio * count_scaling_parameters(config) > 60 * minutes * rate:
            break
        deepest, fits = depth, True
    why = "the deepest model that" if fits else "the least, although not even it"
    clock = "--max_minutes" if given else "time of a run without --max_minutes"
    return replace(settings, depth=deepest), (
        f"--depth {deepest}: {why} sees {ratio:g} tokens per parameter within {minutes:g} minutes ({clock}) "
        f"on this CPU, at {MFU:.0%} of the {devices.count * devices.peak_flops / 1e12:.2f} TFLOP/s measured"
    )


def _models(settings: TrainSettings, vocab_size: int) -> dict[int, ModelConfig]:
    """By depth, the models that the settings allow: a layer or a head that they name may need a deep one."""
    models: dict[int, ModelConfig] = {}
    for depth in range(LEAST_DEPTH, DEPTH + 1):
        with suppress(UserError):
            models[depth] = model_config(replace(settings, depth=depth), vocab_size)
    return models or {DEPTH: model_config(replace(settings, depth=DEPTH), vocab_size)}  # says what is wrong


def _rows(settings: TrainSettings, shares: int, limit: float) -> int:
    """The default or a half of it, a fourth and so on: what divides a given batch and is not too much."""
    rows, batch = DEVICE_BATCH_SIZE, settings.total_batch_size
    while rows > 1 and (rows > limit or (batch > 0 and batch % (rows * settings.max_seq_len * shares))):
        rows //= 2
    return rows


def _eval_tokens(limit: float) -> int:
    """The default or a half of it, a fourth and so on, down to a least."""
    tokens = EVAL_TOKENS
    while tokens > max(limit, LEAST_EVAL_TOKENS):
        tokens //= 2
    return tokens
