"""The kernels with which a model trains, found out before anything is built or compiled."""

from __future__ import annotations

import torch

from cpplm.model.config import ModelConfig
from cpplm.model.kernels.attention import ATTENTION, AttentionRequest
from cpplm.model.kernels.loss import LOSS, LossRequest
from cpplm.model.settings import KernelSettings


def select_training_kernels(
    config: ModelConfig,
    kernels: KernelSettings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    compiling: bool,
    documents: bool = False,
) -> dict[str, str]:
    """Names of the kernels of the loss and of each kind of attention layer.

    With `documents` attention keeps the documents of a row apart.

    Raises:
        UserError: one that was named cannot do what the model needs; it says why, and what can.
    """
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
            documents=documents,
            compiling=compiling,
        )
        kind = "attention" if window is None else "windowed attention"
        chosen[kind] = ATTENTION.select(request, kernels.attention).name
    return chosen
