"""One transformer layer: n-gram memory, attention, MLP, each added to the residual stream or streams."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cpplm.model.attention import Attention, Context
from cpplm.model.config import ModelConfig
from cpplm.model.engram import EngramMemory, NgramBranch
from cpplm.model.hyper_connections import HyperConnection
from cpplm.model.kernels.small_batch_linear import mlp
from cpplm.model.kv_cache.spec import Remembered
from cpplm.model.layers import MLP, SwiGLU, norm


class Block(nn.Module):
    """Sublayers on the normalised residual stream, BTC, or on streams, BTNC, with hyper-connections."""

    def __init__(self, config: ModelConfig, layer: int, part: str = "") -> None:
        """Uninitialised.

        Args:
            config: of the model that the block is a layer of.
            layer: which one.
            part: of the whole model, in the names of what is remembered in decoding.
        """
        super().__init__()
        self.layer = layer
        self.engram: EngramMemory | NgramBranch | None = None
        if config.engram is not None and layer in config.engram.layers:
            self.engram = (EngramMemory if config.engram.kind == "memory" else NgramBranch)(config, layer)
        self.attention = Attention(config, layer, part)
        self.mlp = (SwiGLU if config.mlp == "swiglu" else MLP)(config.model_dim, config.mlp_dim)
        self._weights: list[Tensor] = []  # for kernels
        self.connections: nn.ModuleDict | None = None
        if config.hyper_connections is not None:
            names = ("engram", "attention", "mlp") if self.engram is not None else ("attention", "mlp")
            self.connections = nn.ModuleDict(
                {
                    name: HyperConnection(config.hyper_connections, config.model_dim, 3 * layer + index)
                    for index, name in enumerate(names)
                }
            )

    def use_kernels(self) -> None:
        """Few tokens by kernels of their own from now on; with hyper-connections or SwiGLU nothing changes.

        Queries, keys and values are fused already, weights are bfloat16.
        """
        fused = self.attention.fused
        assert fused is not None  # noqa: S101  (see above)
        if self.connections is None and isinstance(self.mlp, MLP):
            linear = (fused, self.attention.output, self.mlp.up, self.mlp.down)
            self._weights = [layer.get_parameter("weight") for layer in linear]

    def remembered(self) -> list[Remembered]:
        """What the layer keeps of earlier tokens while decoding."""
        return self.attention.remembered() + ([] if self.engram is None else self.engram.remembered())

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The residual stream or streams after this layer, and the indexer's divergence."""
        divergence = torch.zeros((), device=x.device)

        def attend(x_BTC: Tensor) -> Tensor:
            nonlocal divergence
            mixed_BTC, divergence = self.attention(norm(x_BTC), context)
            return mixed_BTC

        if self.engram is not None:
            x = self._add("engram", x, lambda x_BTC: self._remember(norm(x_BTC), context))
        if self._weights:
            fused, output, up, down = self._weights
            if (added_BTC := self.attention.add_to_few(x, context, fused, output)) is not None:
                return mlp(added_BTC, up, down), divergence
        x = self._add("attention", x, attend)
        return self._add("mlp", x, lambda x_BTC: self.mlp(norm(x_BTC))), divergence

    def _remember(self, x_BTC: Tensor, context: Context) -> Tensor:
        if isinstance(self.engram, EngramMemory):
            return self.engram(x_BTC, context.found[self.layer], context.cache)
        assert self.engram is not None  # noqa: S101  (the caller asked)
        return self.engram(x_BTC, context.cache)

    def _add(self, name: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(x) if self.connections is None else self.connections[name](x, sublayer)
