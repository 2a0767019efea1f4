"""Causal self-attention: rotary positions, and optionally normalized queries and keys, a gated embedding of
the token among the values, or an indexer that chooses what is attended to.

Shapes: B batch, T tokens, S keys, C model_dim, H query heads, G key-value heads, D head_dim, J indexer heads,
E indexer_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpplm.model.config import VALUE_GATE_INPUTS, ModelConfig
from cpplm.model.kernels.attention import attention
from cpplm.model.kernels.masks import SparseSpec
from cpplm.model.kernels.sparse import sparse_attention
from cpplm.model.kv_cache.view import AttendInPlace, CacheView, KVCacheSpec
from cpplm.model.layers import Angles, Linear, norm, rotary_angles, rotate

VALUE_GATE_RANGE = 3.0  # the gate of a value embedding ends here, as in nanochat


@dataclass(frozen=True)
class ForwardContext:
    """Inputs of one forward pass that all layers share."""

    ids_BT: Tensor
    positions: Tensor
    """Positions as `rotary_angles` takes them."""
    angles: Angles
    cache: CacheView | None = None
    documents_BS: Tensor | None = None
    """The document of each key, to keep attention inside it."""
    dense: bool = False
    """Sparse layers attend to everything while their indexer warms up."""
    backend: str = "auto"
    """Name of the attention kernel."""
    ngram_embeddings: Mapping[int, Tensor] = field(default_factory=dict)
    """By layer, see `EngramMemory.embed_ngrams`."""
    gradient_checkpointing: bool = False
    """Activations of blocks are computed again in the backward pass (Chen et al. 2016, arXiv 1604.06174)."""
    num_outputs: int | None = None
    """Last tokens whose states are wanted; None for all. What follows the last layer's keys and values is
    computed of these alone."""


class Indexer(nn.Module):
    """Scores earlier tokens for each query; it reads the residual stream, no gradient flows back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.dsa is not None  # noqa: S101  (the caller asked)
        self.rope_base = config.rope_base
        self.dim, heads = config.dsa.indexer_dim, config.dsa.indexer_heads
        self.sparse_spec = SparseSpec(config.dsa.top_k, config.dsa.local_window, dense=False)
        self.query = Linear(config.model_dim, heads * self.dim)
        self.key = Linear(config.model_dim, self.dim)
        self.head_weights = Linear(config.model_dim, heads)

    def forward(self, x_BTC: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor, Tensor]:
        """Index queries BJTE, index keys BTE, weights BTJ (equation 1)."""
        x_BTC = x_BTC.detach()
        angles = rotary_angles(context.positions, self.dim, self.rope_base)
        query_BJTE = self.query(x_BTC).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        query_BJTE = norm(rotate(query_BJTE, angles))
        key_BTE = norm(rotate(self.key(x_BTC).unsqueeze(1), angles)).squeeze(1)
        weight_BTJ = self.head_weights(x_BTC) * query_BJTE.size(1) ** -0.5
        return query_BJTE, key_BTE, weight_BTJ


IndexerOutput = tuple[Tensor, Tensor, Tensor]
"""Queries BJTE, keys BTE, weights BTJ of an indexer."""


class Attention(nn.Module):
    """Attention of one layer, over a window, the whole context, or the indexer's choice."""

    def __init__(self, config: ModelConfig, layer: int, part: str = "") -> None:
        super().__init__()
        self.window = config.windows()[layer]
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.qk_norm, self.qk_scale = config.qk_norm, config.qk_scale
        self.query = Linear(config.model_dim, config.num_heads * config.head_dim)
        self.key = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.value = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.output = Linear(config.num_heads * config.head_dim, config.model_dim)
        self.qkv: nn.Module | None = None
        self.value_embedding: nn.Embedding | None = None
        if config.has_value_embedding(layer):
            self.value_embedding = nn.Embedding(
                config.padded_vocab_size, config.num_kv_heads * config.head_dim
            )
            self.value_gate = Linear(min(VALUE_GATE_INPUTS, config.model_dim), config.num_kv_heads)
        self.indexer = Indexer(config) if config.is_sparse(layer) else None
        self.key_cache, self.value_cache, self.index_key_cache = (
            f"{part}{what} {layer}" for what in ("keys", "values", "index keys")
        )

    @torch.no_grad()
    def fuse_qkv(self) -> None:
        """Compute queries, keys and values by one product from now on; not for training."""
        parts = (self.query, self.key, self.value)
        self.qkv = Linear(self.query.in_features, sum(part.out_features for part in parts))
        self.qkv.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        del self.query, self.key, self.value

    def cache_specs(self) -> list[KVCacheSpec]:
        """Keys and values within the window, and all keys of the indexer."""
        shape = (self.num_kv_heads, self.head_dim)
        specs = [KVCacheSpec(name, shape, self.window) for name in (self.key_cache, self.value_cache)]
        if self.indexer is not None:
            specs.append(KVCacheSpec(self.index_key_cache, (self.indexer.dim,), None))
        return specs

    def forward(
        self, x_BTC: Tensor, context: ForwardContext, *, num_queries: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """BTC to BTC, and the indexer's mean divergence in nats, 0 without one.

        With a cache, the tokens follow those it holds.

        Args:
            x_BTC: the normalized residual stream.
            context: of this pass.
            num_queries: the last tokens that attend, of rows without padding and without an indexer; None
                for all.
        """
        query_BHTD, key_BGTD, value_BGTD = self._project(x_BTC, context)
        if num_queries is not None:
            query_BHTD = query_BHTD[:, :, -num_queries:]
        index = None if self.indexer is None else self.indexer(x_BTC, context)
        divergence = None
        if context.cache is None:
            mixed_BHTD, divergence = self._attend(
                query_BHTD, key_BGTD, value_BGTD, index, context.documents_BS, context
            )
        else:
            mixed_BHTD = self._attend_cached(query_BHTD, key_BGTD, value_BGTD, index, context.cache, context)
        if divergence is None:
            divergence = torch.zeros((), device=x_BTC.device)
        return self.output(mixed_BHTD.transpose(1, 2).flatten(-2)), divergence

    def weights(self, x_BTC: Tensor, context: ForwardContext) -> Tensor:
        """The weight of each key for each query, shape BHTS: what becomes of the identity as values."""
        query_BHTD, key_BGTD, value_BGTD = self._project(x_BTC, context)
        index = None if self.indexer is None else self.indexer(x_BTC, context)
        num_keys, width = value_BGTD.shape[2:]
        columns = -(-num_keys // width) * width
        identity = torch.eye(num_keys, columns, dtype=value_BGTD.dtype, device=value_BGTD.device)
        mixed = [
            self._attend(
                query_BHTD, key_BGTD, part.expand_as(value_BGTD), index, context.documents_BS, context
            )[0]
            for part in identity.split(width, dim=1)
        ]
        return torch.cat(mixed, dim=-1)[..., :num_keys]

    def _attend(
        self, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, index: IndexerOutput | None,
        documents_BS: Tensor | None, context: ForwardContext,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Attention of the last T of S tokens, and the mean divergence of an indexer."""
        if index is None or self.indexer is None:
            mixed_BHTD = attention(
                query_BHTD, key_BGSD, value_BGSD,
                window=self.window, documents_BS=documents_BS, backend=context.backend,
            )  # fmt: skip
            return mixed_BHTD, None
        spec = replace(self.indexer.sparse_spec, dense=context.dense)
        mixed_BHTD, divergence_BT = sparse_attention(
            query_BHTD, key_BGSD, value_BGSD, *index, spec, documents_BS
        )
        return mixed_BHTD, divergence_BT.mean()

    def _attend_cached(
        self, query_BHTD: Tensor, key_BGTD: Tensor, value_BGTD: Tensor, index: IndexerOutput | None,
        cache: CacheView, context: ForwardContext,
    ) -> Tensor:  # fmt: skip
        """Attention over the tokens that the cache holds and the new ones, which are written to it."""
        cache.write(self.key_cache, key_BGTD.transpose(1, 2))
        cache.write(self.value_cache, value_BGTD.transpose(1, 2))
        if index is not None:
            cache.write(self.index_key_cache, index[1])
        has_all_queries = query_BHTD.size(2) == key_BGTD.size(2)
        if has_all_queries and (attend := self.attend_in_place(context)) is not None:
            query_BTHD = query_BHTD.transpose(1, 2)
            return attend(query_BTHD, self.key_cache, self.value_cache, self.window).transpose(1, 2)
        mixed = []
        for batch in cache.batches(self.key_cache):
            rows, new = batch.rows, slice(batch.queries)
            key_BGSD = batch.read(self.key_cache).transpose(1, 2)
            value_BGSD = batch.read(self.value_cache).transpose(1, 2)
            index_of_rows = None
            if index is not None:
                index_key_BSE = batch.read(self.index_key_cache)
                index_of_rows = (index[0][rows, :, new], index_key_BSE, index[2][rows, new])
            mixed_of_rows, _ = self._attend(
                query_BHTD[rows, :, new], key_BGSD, value_BGSD, index_of_rows, batch.documents_BS, context
            )
            padding = query_BHTD.size(2) - batch.queries
            mixed.append(F.pad(mixed_of_rows, (0, 0, 0, padding)) if padding > 0 else mixed_of_rows)
        return torch.cat(mixed)

    def attend_in_place(self, context: ForwardContext) -> AttendInPlace | None:
        """The cache's own attention, which copies no keys and values; None where it cannot serve."""
        if context.cache is None or self.indexer is not None or context.backend != "auto":
            return None
        return None if torch.is_grad_enabled() else context.cache.attend_in_place

    def _project(self, x_BTC: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated and perhaps normalized, and values."""
        if self.qkv is None:
            query_BHTD = self._rope_norm(self.query(x_BTC), context.angles)
            key_BGTD = self._rope_norm(self.key(x_BTC), context.angles)
            value = self.value(x_BTC)
        else:
            split = (self.num_heads + self.num_kv_heads) * self.head_dim
            query_key, value = self.qkv(x_BTC).tensor_split([split], dim=-1)
            query_key = self._rope_norm(query_key, context.angles)
            query_BHTD, key_BGTD = query_key.tensor_split([self.num_heads], dim=1)
        return query_BHTD, key_BGTD, self._heads(self.add_value_embedding(value, x_BTC, context.ids_BT))

    def _rope_norm(self, projected: Tensor, angles: Angles) -> Tensor:
        rotated = rotate(self._heads(projected), angles)
        return norm(rotated) * self.qk_scale if self.qk_norm else rotated

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def add_value_embedding(self, value: Tensor, x_BTC: Tensor, ids_BT: Tensor) -> Tensor:
        """Values plus the gated embedding of each token (after ResFormer, Zhou et al. 2024)."""
        if self.value_embedding is None:
            return value
        gate_BTG = self.value_gate(x_BTC[..., : self.value_gate.in_features])
        gate_BTG1 = (VALUE_GATE_RANGE * gate_BTG.sigmoid()).unsqueeze(-1)
        embedded = self.value_embedding(ids_BT).to(value.dtype).unflatten(-1, (-1, self.head_dim))
        return value + (gate_BTG1 * embedded).flatten(-2)
