"""One transformer layer: n-gram memory, attention, MLP, each added to the residual stream or streams."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cpplm.model.attention import Attention, ForwardContext
from cpplm.model.config import ModelConfig
from cpplm.model.engram import EngramMemory, NgramBranch
from cpplm.model.hyper_connections import HyperConnection
from cpplm.model.kv_cache.view import KVCacheSpec
from cpplm.model.layers import MLP, SwiGLU, norm


class TransformerBlock(nn.Module):
    """Sublayers on the normalized residual stream, BTC, or on streams, BTNC, with hyper-connections."""

    def __init__(self, config: ModelConfig, layer: int, part: str = "") -> None:
        """Uninitialized.

        Args:
            config: of the model that the block is a layer of.
            layer: which one.
            part: of the whole model; begins the names of its cache specs.
        """
        super().__init__()
        self.layer = layer
        self.engram: EngramMemory | NgramBranch | None = None
        if config.engram is not None and layer in config.engram.layers:
            self.engram = (EngramMemory if config.engram.kind == "memory" else NgramBranch)(config, layer)
        self.attention = Attention(config, layer, part)
        self.mlp = (SwiGLU if config.mlp == "swiglu" else MLP)(config.model_dim, config.mlp_dim)
        self.decode_step_fused: Callable[[Tensor, ForwardContext], Tensor | None] | None = None
        """Attention and MLP by kernels where these serve (`fused_decode.py`), else it gives None."""
        self.connections: nn.ModuleDict | None = None
        if config.hyper_connections is not None:
            names = ("engram", "attention", "mlp") if self.engram is not None else ("attention", "mlp")
            self.connections = nn.ModuleDict(
                {
                    name: HyperConnection(config.hyper_connections, config.model_dim, 3 * layer + index)
                    for index, name in enumerate(names)
                }
            )
        is_last = layer == config.num_layers - 1 and not part
        self._reduces_outputs = is_last and self.connections is None and self.attention.indexer is None

    def cache_specs(self) -> list[KVCacheSpec]:
        """Tensors that the layer caches per token in decoding."""
        return self.attention.cache_specs() + ([] if self.engram is None else self.engram.cache_specs())

    def forward(self, x: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """The residual stream or streams after this layer, and the indexer's divergence."""
        divergence = torch.zeros((), device=x.device)
        num_queries = context.num_outputs if self._reduces_outputs else None

        def attend(x_BTC: Tensor) -> Tensor:
            nonlocal divergence
            mixed_BTC, divergence = self.attention(norm(x_BTC), context, num_queries=num_queries)
            return mixed_BTC

        if (engram := self.engram) is not None:
            x = self._add("engram", x, lambda x_BTC: engram(norm(x_BTC), context))
        if self.decode_step_fused is not None and (fused := self.decode_step_fused(x, context)) is not None:
            return fused, divergence
        x = self._add("attention", x, attend) if num_queries is None else x[:, -num_queries:] + attend(x)
        return self._add("mlp", x, lambda x_BTC: self.mlp(norm(x_BTC))), divergence

    def _add(self, name: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(x) if self.connections is None else self.connections[name](x, sublayer)
