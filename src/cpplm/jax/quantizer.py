"""The step of a run at which its weights are first rounded: on the host, by PyTorch's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.dataloader.loader import Batch
from cpplm.jax.param_stacking import meta_model, stack_params
from cpplm.jax.step import TrainStep
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.packing import quantization_record
from cpplm.model.quantized.recipe import Recipe
from cpplm.optim.groups import build_optimizer
from cpplm.optim.muon import MuonAdamW
from cpplm.train import quantization
from cpplm.train.backend import StepPlan
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.settings import TrainSettings


class Quantizer:
    """Rounds the weights of a model that JAX trains, once, when that is due."""

    def __init__(
        self,
        settings: TrainSettings,
        config: ModelConfig,
        make_step: Callable[[Recipe], TrainStep],
        processes: int,
    ) -> None:
        """Nothing is touched yet.

        Args:
            settings: of the run.
            config: of the model.
            make_step: the training step of the model once it is quantised.
            processes: that train together.

        Raises:
            UserError: it was not made for several processes, or for frozen codes.
        """
        if processes > 1:
            raise UserError(
                "--quantize with --backend jax is of one host", fix="Train on one, or use --backend torch."
            )
        if settings.quantization.freeze_codes:
            raise UserError("--freeze_codes is PyTorch's", fix="Leave it out, or use --backend torch.")
        self._settings, self._config, self._make_step = settings, config, make_step

    def is_due(self, plan: StepPlan) -> bool:
        """True once the run has come so far."""
        return plan.progress >= self._settings.quantize_from

    def quantize(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], batches: Sequence[Batch]
    ) -> tuple[TrainStep, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The new step, weights and optimizer state, the latter two stacked, in the memory of the host.

        Args:
            weights: by the checkpoint's names.
            state: of the optimizer, likewise.
            batches: whose activations count.

        Raises:
            UserError: the recipe does not fit the model.
        """
        settings = self._settings
        model = meta_model(self._config, None).to_empty(device="cpu")
        model.load_state_dict(weights)

        def make_optimizer() -> MuonAdamW:
            scale_lr = settings.quantization.scale_lr
            return build_optimizer(model, settings.rates, batch_tokens=1, budget=1.0, scale_lr=scale_lr)

        optimizer = make_optimizer()  # for its moments alone
        optimizer.load_named_state(dict(state))
        rounding = quantization.Quantizer(settings, make_optimizer)
        optimizer = rounding.quantize(model, optimizer, batches, SINGLE_PROCESS)
        recipe = Recipe.parse(settings.quantization.quantize)
        step = self._make_step(recipe)
        named = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        moments = {key: tensor.numpy() for key, tensor in optimizer.named_state().items()}
        return step, stack_params(named, self._config, recipe), step.optimizer.stack_state(moments)

    def record(self, recipe: Recipe) -> dict[str, Any]:
        """The record in `quantization.json`."""
        model = meta_model(self._config, recipe)
        return quantization_record(model, self._settings.quantization.quantize, packed=False)
