"""The model and its loss, as the settings describe them, new or from a checkpoint."""

from __future__ import annotations

import torch

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_dtype
from cpplm.model.config import ModelConfig
from cpplm.model.kernels.attention import ATTENTION, AttentionRequest
from cpplm.model.kernels.loss import LOSS, LossRequest
from cpplm.model.quantization import convert_to_fp8, convert_to_nvfp4, require_fp8, require_nvfp4
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.token_normalization import canonical_ids
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.weights import load_weights
from cpplm.train.compile import LossFunction, can_compile, compiled_losses
from cpplm.train.distributed import TorchDistContext
from cpplm.train.quantization import has_latent_weights, restore_latent_weights
from cpplm.train.settings import TrainSettings
from cpplm.train.sharding import init_weights, load_full_state_dict, shard_model


def choose_kernels(settings: TrainSettings, config: ModelConfig, device: torch.device) -> dict[str, str]:
    """The kernels that will run, by what they compute: the loss and each kind of attention layer.

    Raises:
        UserError: kernels or number formats that were asked for are not to be had here; it says why, and what
            is.
    """
    kernels = settings.kernels
    if kernels.fp8:
        require_fp8()
    if kernels.nvfp4:
        require_nvfp4()
    dtype = choose_dtype(settings.precision, device)
    if (kernels.fp8 or kernels.nvfp4) and dtype != torch.bfloat16:
        raise UserError("--fp8 and --nvfp4 need --precision bf16", fix="Set it, or leave those flags out.")
    compiling = not settings.no_compile and can_compile(device)
    of_loss = LossRequest.training(device, dtype, softcap=config.logit_softcap, compiling=compiling)
    chosen = {"loss": LOSS.select(of_loss, kernels.kernel).name}
    for layer, window in enumerate(config.windows()):
        if config.is_sparse(layer):
            chosen["sparse attention"] = "blocks of queries"
            continue
        request = AttentionRequest.training(
            device,
            dtype,
            head_dim=config.head_dim,
            length=config.max_seq_len,
            window=window,
            documents=settings.data.document_mask,
            compiling=compiling,
        )
        kind = "attention" if window is None else "windowed attention"
        chosen[kind] = ATTENTION.select(request, kernels.attention).name
    return chosen


def build_model(
    settings: TrainSettings,
    config: ModelConfig,
    tokenizer: Tokenizer,
    weights: Checkpoint | None,
    dist: TorchDistContext,
) -> Transformer:
    """The model, new or with the weights of a checkpoint, on this rank's device.

    Raises:
        UserError: number formats and division among ranks that have not been made to work together.
    """
    kernels = settings.kernels
    if settings.shard and (kernels.fp8 or kernels.nvfp4):
        raise UserError("--shard divides float32 weights only", fix="Leave out --fp8 and --nvfp4.")
    with torch.device("meta"):
        model = Transformer(
            config, compute_dtype=choose_dtype(settings.precision, dist.device), kernels=kernels
        )
    if settings.shard:
        shard_model(model, dist)
    model.to_empty(device=dist.device)
    if weights is None:
        init_weights(model, settings.seed)
        model.set_canonical_ids(torch.from_numpy(canonical_ids(tokenizer)))
    elif has_latent_weights(weights, settings):
        restore_latent_weights(model, weights, settings)
    else:
        load_full_state_dict(model, load_weights(weights))
    if kernels.fp8:
        convert_to_fp8(model, kernels.fp8_recipe)
    if kernels.nvfp4:
        convert_to_nvfp4(model)
    return model


def loss_function(settings: TrainSettings, model: Transformer) -> LossFunction:
    """The training losses, compiled unless that is turned off."""
    if settings.no_compile:
        return model.training_losses
    shapes = [
        (settings.device_batch_size * settings.max_seq_len // length, length)
        for length in settings.data.row_lengths(settings.max_seq_len)
    ]
    return compiled_losses(model, shapes, documents=settings.data.document_mask)
