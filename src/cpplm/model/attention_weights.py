"""The weights of attention, to look at: how much each token takes of each earlier one, by layer and head.

The kernels never hold them. They are what attention makes of the identity matrix as values, so windows and
sparse layers show as they are computed.

Shapes: B batch, T tokens, S keys, C model_dim, H query heads, G key-value heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpplm.model.attention import Attention
from cpplm.model.transformer import Transformer


@torch.no_grad()
def attention_weights(model: Transformer, ids: Sequence[int]) -> list[Tensor]:
    """The weights of every layer for one text, each HTS in float32; those of a query sum to 1.

    Args:
        model: any; whether it is ready to decode does not matter.
        ids: the text, whose first token is usually <BOS>.
    """
    weights: list[Tensor] = []
    layers = [module for block in model.blocks for module in block.modules() if isinstance(module, Attention)]
    hooks = [layer.register_forward_pre_hook(partial(_record, weights)) for layer in layers]
    try:
        model.hidden_states(torch.tensor([ids], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return weights


def _record(weights: list[Tensor], layer: Attention, inputs: tuple[Any, ...]) -> None:
    x_BTC, context = inputs
    weights.append(layer.weights(x_BTC, context)[0].float())
