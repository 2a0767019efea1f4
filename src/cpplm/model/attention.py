"""Causal self-attention: rotary positions, normalised queries and keys, and optionally a gated embedding of
the token among the values, or an indexer that chooses what is attended to.

Shapes: B batch, T tokens, S keys, C model_dim, H query heads, G key-value heads, D head_dim, J indexer heads,
E indexer_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from cpplm.model.cache import KVCache
from cpplm.model.config import VALUE_GATE_INPUTS, ModelConfig
from cpplm.model.kernels.attention import attention
from cpplm.model.kernels.sparse import Choice, sparse_attention
from cpplm.model.layers import Angles, Linear, norm, rotary_angles, rotate

VALUE_GATE_RANGE = 3.0  # the gate of a value embedding ends here, as in nanochat


@dataclass(frozen=True)
class Context:
    """What every layer of one forward pass is told.

    `documents_BS` names the document of each key, to keep attention inside it; `dense` lets sparse layers
    attend to everything while their indexer warms up; `backend` names the attention kernel.
    """

    ids_BT: Tensor
    angles: Angles
    cache: KVCache | None = None
    documents_BS: Tensor | None = None
    dense: bool = False
    backend: str = "auto"
    found: Mapping[int, Tensor] = field(default_factory=dict)


class Indexer(nn.Module):
    """Scores earlier tokens for each query; it reads the residual stream, no gradient flows back."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.dsa is not None  # noqa: S101  (the caller asked)
        self.layer = layer
        self.rope_base = config.rope_base
        self.dim, heads = config.dsa.indexer_dim, config.dsa.indexer_heads
        self.choice = Choice(config.dsa.top_k, config.dsa.local_window, dense=False)
        self.query = Linear(config.model_dim, heads * self.dim)
        self.key = Linear(config.model_dim, self.dim)
        self.head_weights = Linear(config.model_dim, heads)

    def forward(self, x_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Index queries BJTE, index keys BSE of all tokens so far, weights BTJ (equation 1)."""
        x_BTC = x_BTC.detach()
        start = 0 if context.cache is None else context.cache.length
        angles = rotary_angles(start, x_BTC.size(1), self.dim, self.rope_base, x_BTC.device)
        query_BJTE = self.query(x_BTC).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        query_BJTE = norm(rotate(query_BJTE, angles))
        key_BTE = norm(rotate(self.key(x_BTC), angles))
        if context.cache is not None:
            key_BTE = context.cache.append_rows(f"index keys {self.layer}", key_BTE)
        weight_BTJ = self.head_weights(x_BTC) * query_BJTE.size(1) ** -0.5
        return query_BJTE, key_BTE, weight_BTJ


class Attention(nn.Module):
    """Attention of one layer, over a window, the whole context, or the indexer's choice."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.window = config.windows()[layer]
        self.head_dim = config.head_dim
        self.qk_scale = config.qk_scale
        self.query = Linear(config.model_dim, config.num_heads * config.head_dim)
        self.key = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.value = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.output = Linear(config.num_heads * config.head_dim, config.model_dim)
        self.value_embedding: nn.Embedding | None = None
        if config.has_value_embedding(layer):
            self.value_embedding = nn.Embedding(
                config.padded_vocab_size, config.num_kv_heads * config.head_dim
            )
            self.value_gate = Linear(min(VALUE_GATE_INPUTS, config.model_dim), config.num_kv_heads)
        self.indexer = Indexer(config, layer) if config.is_sparse(layer) else None

    def forward(self, x_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """BTC to BTC, and the indexer's mean divergence in nats, 0 without one.

        With a cache, the tokens follow those it holds.
        """
        query_BHTD = norm(rotate(self._heads(self.query(x_BTC)), context.angles)) * self.qk_scale
        key_BGTD = norm(rotate(self._heads(self.key(x_BTC)), context.angles)) * self.qk_scale
        value_BGTD = self._heads(self._values(x_BTC, context.ids_BT))
        if context.cache is not None:
            key_BGTD, value_BGTD = context.cache.append(self.layer, key_BGTD, value_BGTD)
        divergence = torch.zeros((), device=x_BTC.device)
        if self.indexer is not None:
            index_query_BJTE, index_key_BSE, index_weight_BTJ = self.indexer(x_BTC, context)
            mixed_BHTD, divergence_BT = sparse_attention(
                query_BHTD, key_BGTD, value_BGTD, index_query_BJTE, index_key_BSE, index_weight_BTJ,
                replace(self.indexer.choice, dense=context.dense), context.documents_BS,
            )  # fmt: skip
            divergence = divergence_BT.mean()
        else:
            mixed_BHTD = attention(
                query_BHTD, key_BGTD, value_BGTD,
                window=self.window, documents_BS=context.documents_BS, backend=context.backend,
            )  # fmt: skip
        return self.output(mixed_BHTD.transpose(1, 2).flatten(-2)), divergence

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _values(self, x_BTC: Tensor, ids_BT: Tensor) -> Tensor:
        """Values, with the gated embedding of each token (after ResFormer, Zhou et al. 2024)."""
        value = self.value(x_BTC)
        if self.value_embedding is None:
            return value
        gate_BTG = self.value_gate(x_BTC[..., : self.value_gate.in_features])
        gate_BTG1 = (VALUE_GATE_RANGE * gate_BTG.sigmoid()).unsqueeze(-1)
        embedded = self.value_embedding(ids_BT).to(value.dtype).unflatten(-1, (-1, self.head_dim))
        return value + (gate_BTG1 * embedded).flatten(-2)
