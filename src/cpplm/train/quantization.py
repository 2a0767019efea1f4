"""Quantisation-aware training: from some step on, the weights of a model are rounded in each forward pass.

Rounded weights need no other loop: the layers that hold them (`cpplm.model.quantized.layers`) take the place
of the plain ones, the optimizer goes on with the moments that it has, and checkpoints hold the weights before
rounding beside their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.dataloader.loader import Batch
from cpplm.model.quantized.calibration import input_importances
from cpplm.model.quantized.layers import (
    QuantizedEmbedding,
    QuantizedLinear,
    moving_scales,
    plain_name,
    quantizable,
    quantize_layers,
)
from cpplm.model.quantized.packing import quantization_record, restore_layers
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import param_role
from cpplm.optim.muon import MuonAdamW
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint
from cpplm.train.checkpoint.weights import load_tensors
from cpplm.train.distributed import DistContext
from cpplm.train.settings import TrainSettings


class Quantizer:
    """Rounds the weights of a model that is being trained, once, when that is due."""

    def __init__(self, settings: TrainSettings, make_optimizer: Callable[[], MuonAdamW]) -> None:
        """Nothing is touched yet; `make_optimizer` makes one for the model as it will be."""
        self.settings, self._make_optimizer = settings, make_optimizer
        self.frozen_scales = ""
        """The target of `freeze_scales`, once it was called."""

    def is_due(self, model: Transformer, progress: float) -> bool:
        """True where the model has plain weights, and the run has come so far that they are to be rounded."""
        return progress >= self.settings.quantize_from and not is_quantized(model)

    def quantize(
        self, model: Transformer, optimizer: MuonAdamW, passes: Sequence[Batch], dist: DistContext
    ) -> MuonAdamW:
        """Round the weights of a model, in place.

        Args:
            model: with plain weights.
            optimizer: of it.
            passes: of this rank in the step that comes, whose activations count.
            dist: the ranks.

        Returns:
            Its new optimizer, with the moments of the old one where those learned before.

        Raises:
            UserError: the recipe does not fit the model.
        """
        quantization = self.settings.quantization
        recipe, importances = Recipe.parse(quantization.quantize), None
        if quantization.quantize_init == "activation":
            names = quantizable(model, recipe)
            found = input_importances(model, names, lambda: _read_all(model, passes))
            importances = {name: dist.mean(values_I) for name, values_I in found.items()}
        formats = quantize_layers(
            model, recipe, init=quantization.quantize_init, importances=importances,
            freeze_codes=quantization.freeze_codes,
        )  # fmt: skip
        if quantization.freeze_codes:
            train_scales_alone(model)
        log_info(f"the weights of {len(formats)} layers are rounded from now on")
        return self._renewed(optimizer)

    def freeze_scales(self, model: Transformer, optimizer: MuonAdamW, target: str) -> MuonAdamW:
        """Round scales to float16, as files hold them, and train them no further, in place.

        Args:
            model: with rounded weights.
            optimizer: of it.
            target: see `moving_scales`.

        Returns:
            The model's new optimizer.
        """
        freeze_scales(model, target)
        self.frozen_scales = target
        return self._renewed(optimizer)

    def _renewed(self, optimizer: MuonAdamW) -> MuonAdamW:
        """An optimizer for the model as it is now, with the moments that the one before has."""
        renewed, then = self._make_optimizer(), optimizer.named_state()
        state = renewed.named_state()
        for key in state:
            name, _, part = key.rpartition("/")
            state[key] = then.get(f"{plain_name(name)}/{part}", state[key])
        renewed.load_named_state(state)
        return renewed

    def record(self, model: Transformer) -> dict[str, Any] | None:
        """The record in `quantization.json`; None before weights are rounded."""
        if not is_quantized(model):
            return None
        record = quantization_record(model, self.settings.quantization.quantize, packed=False)
        return record | ({"frozen_scales": self.frozen_scales} if self.frozen_scales else {})


@torch.no_grad()
def freeze_scales(model: Transformer, target: str) -> None:
    """Round scales to float16 and train them no further (`Quantizer.freeze_scales`)."""
    for scales in moving_scales(model, target).values():
        scales.copy_(scales.half())
        scales.requires_grad_(False)


def _read_all(model: Transformer, passes: Sequence[Batch]) -> None:
    """Call every linear layer on the texts of some batches; the head on every sixteenth token."""
    for batch in passes:
        documents_BT = None if batch.documents is None else batch.documents.to(model.device)
        hidden_BTC = model.hidden_states(batch.inputs.to(model.device), documents_BT=documents_BT)
        model.logits(hidden_BTC[:, ::16])


def train_scales_alone(model: nn.Module) -> None:
    """Freeze all but the scales of rounded weights."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(param_role(name)[1] == "scale")


def is_quantized(model: Transformer) -> bool:
    """True if a layer of the model has rounded weights."""
    return any(isinstance(module, QuantizedLinear | QuantizedEmbedding) for module in model.modules())


def has_latent_weights(checkpoint: Checkpoint, settings: TrainSettings) -> bool:
    """True for a checkpoint of a run that rounds weights as these settings do, to be gone on with."""
    if QUANTIZATION not in checkpoint.files or not settings.quantization.quantize:
        return False
    record = checkpoint.json(QUANTIZATION)
    return not record["packed"] and record["recipe"] == settings.quantization.quantize


def frozen_scales_of(checkpoint: Checkpoint) -> str:
    """The target of `Quantizer.freeze_scales` in the run of a checkpoint; "" where nothing was frozen."""
    return checkpoint.json(QUANTIZATION).get("frozen_scales", "") if QUANTIZATION in checkpoint.files else ""


def restore_latent_weights(model: Transformer, checkpoint: Checkpoint, settings: TrainSettings) -> None:
    """Give a model the rounded layers of a checkpoint, with the weights before rounding, in place.

    Raises:
        UserError: they do not fit.
    """
    device = model.device
    try:
        restore_layers(model, load_tensors(checkpoint, "model.safetensors"), checkpoint.json(QUANTIZATION))
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{checkpoint.path()}: weights do not fit the configuration: {error}") from error
    model.to(device)
    if settings.quantization.freeze_codes:
        train_scales_alone(model)
    freeze_scales(model, frozen_scales_of(checkpoint))
