"""Causal self-attention: rotary positions, normalised queries and keys, and optionally a gated embedding of
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
from cpplm.model.kernels.decode_attention import Blocks, decode_attention
from cpplm.model.kernels.small_batch_linear import can_take, product, turn
from cpplm.model.kernels.sparse import Choice, sparse_attention
from cpplm.model.kv_cache.spec import Remembered
from cpplm.model.kv_cache.view import CacheView
from cpplm.model.layers import Angles, Linear, norm, rotary_angles, rotate

VALUE_GATE_RANGE = 3.0  # the gate of a value embedding ends here, as in nanochat


@dataclass(frozen=True)
class Context:
    """What every layer of one forward pass is told.

    `documents_BS` names the document of each key, to keep attention inside it; `dense` lets sparse layers
    attend to everything while their indexer warms up; `backend` names the attention kernel. `positions` are
    those of `rotary_angles`.
    """

    ids_BT: Tensor
    positions: Tensor
    angles: Angles
    cache: CacheView | None = None
    documents_BS: Tensor | None = None
    dense: bool = False
    backend: str = "auto"
    found: Mapping[int, Tensor] = field(default_factory=dict)


class Indexer(nn.Module):
    """Scores earlier tokens for each query; it reads the residual stream, no gradient flows back."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.dsa is not None  # noqa: S101  (the caller asked)
        self.rope_base = config.rope_base
        self.dim, heads = config.dsa.indexer_dim, config.dsa.indexer_heads
        self.choice = Choice(config.dsa.top_k, config.dsa.local_window, dense=False)
        self.query = Linear(config.model_dim, heads * self.dim)
        self.key = Linear(config.model_dim, self.dim)
        self.head_weights = Linear(config.model_dim, heads)

    def forward(self, x_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Index queries BJTE, index keys BTE, weights BTJ (equation 1)."""
        x_BTC = x_BTC.detach()
        angles = rotary_angles(context.positions, self.dim, self.rope_base)
        query_BJTE = self.query(x_BTC).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        query_BJTE = norm(rotate(query_BJTE, angles))
        key_BTE = norm(rotate(self.key(x_BTC).unsqueeze(1), angles)).squeeze(1)
        weight_BTJ = self.head_weights(x_BTC) * query_BJTE.size(1) ** -0.5
        return query_BJTE, key_BTE, weight_BTJ


Index = tuple[Tensor, Tensor, Tensor]
"""What an indexer gives: queries, keys, weights."""


class Attention(nn.Module):
    """Attention of one layer, over a window, the whole context, or the indexer's choice."""

    def __init__(self, config: ModelConfig, layer: int, part: str = "") -> None:
        super().__init__()
        self.window = config.windows()[layer]
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.qk_scale = config.qk_scale
        self.query = Linear(config.model_dim, config.num_heads * config.head_dim)
        self.key = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.value = Linear(config.model_dim, config.num_kv_heads * config.head_dim)
        self.output = Linear(config.num_heads * config.head_dim, config.model_dim)
        self.fused: nn.Module | None = None
        self.value_embedding: nn.Embedding | None = None
        if config.has_value_embedding(layer):
            self.value_embedding = nn.Embedding(
                config.padded_vocab_size, config.num_kv_heads * config.head_dim
            )
            self.value_gate = Linear(min(VALUE_GATE_INPUTS, config.model_dim), config.num_kv_heads)
        self.indexer = Indexer(config, layer) if config.is_sparse(layer) else None
        self._keys, self._values, self._index_keys = (
            f"{part}{what} {layer}" for what in ("keys", "values", "index keys")
        )

    @torch.no_grad()
    def fuse(self) -> None:
        """Queries, keys and values by one product from now on; not for training."""
        parts = (self.query, self.key, self.value)
        fused = Linear(self.query.in_features, sum(part.out_features for part in parts))
        fused.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        self.fused = fused
        del self.query, self.key, self.value

    def remembered(self) -> list[Remembered]:
        """Keys and values in reach, and all keys of the indexer."""
        shape = (self.num_kv_heads, self.head_dim)
        rows = [Remembered(name, shape, self.window) for name in (self._keys, self._values)]
        if self.indexer is not None:
            rows.append(Remembered(self._index_keys, (self.indexer.dim,), None))
        return rows

    def forward(self, x_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """BTC to BTC, and the indexer's mean divergence in nats, 0 without one.

        With a cache, the tokens follow those it holds.
        """
        query_BHTD, key_BGTD, value_BGTD = self._project(x_BTC, context)
        index = None if self.indexer is None else self.indexer(x_BTC, context)
        if context.cache is None:
            mixed_BHTD, divergence = self._mix(
                query_BHTD, key_BGTD, value_BGTD, index, context.documents_BS, context
            )
        else:
            mixed_BHTD, divergence = self._mix_with_earlier(
                query_BHTD, key_BGTD, value_BGTD, index, context.cache, context
            )
        if divergence is None:
            divergence = torch.zeros((), device=x_BTC.device)
        return self.output(mixed_BHTD.transpose(1, 2).flatten(-2)), divergence

    def _mix(
        self, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, index: Index | None, documents_BS:
        Tensor | None, context: Context,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """What the last T of S tokens attend to, and the mean divergence of an indexer."""
        if index is None or self.indexer is None:
            mixed_BHTD = attention(
                query_BHTD, key_BGSD, value_BGSD,
                window=self.window, documents_BS=documents_BS, backend=context.backend,
            )  # fmt: skip
            return mixed_BHTD, None
        choice = replace(self.indexer.choice, dense=context.dense)
        mixed_BHTD, divergence_BT = sparse_attention(
            query_BHTD, key_BGSD, value_BGSD, *index, choice, documents_BS
        )
        return mixed_BHTD, divergence_BT.mean()

    def _mix_with_earlier(
        self, query_BHTD: Tensor, key_BGTD: Tensor, value_BGTD: Tensor, index: Index | None, cache: CacheView,
        context: Context,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """The same over the tokens that the cache holds and the new ones, which it takes in."""
        cache.write(self._keys, key_BGTD.transpose(1, 2))
        cache.write(self._values, value_BGTD.transpose(1, 2))
        if index is not None:
            cache.write(self._index_keys, index[1])
        if (blocks := self._in_place(context)) is not None:
            keys_SGD, values_SGD = cache.slots(self._keys), cache.slots(self._values)
            mixed_BTHD = decode_attention(
                query_BHTD.transpose(1, 2), keys_SGD, values_SGD, blocks, window=self.window
            )
            return mixed_BTHD.transpose(1, 2), None
        mixed = []
        for piece in cache.pieces(self._keys):
            rows, new = piece.rows, slice(piece.queries)
            key_BGSD = cache.read(self._keys, piece).transpose(1, 2)
            value_BGSD = cache.read(self._values, piece).transpose(1, 2)
            of_piece = None
            if index is not None:
                of_piece = (index[0][rows, :, new], cache.read(self._index_keys, piece), index[2][rows, new])
            of_rows, _ = self._mix(
                query_BHTD[rows, :, new], key_BGSD, value_BGSD, of_piece, piece.documents_BS, context
            )
            padding = query_BHTD.size(2) - piece.queries
            mixed.append(F.pad(of_rows, (0, 0, 0, padding)) if padding else of_rows)
        return torch.cat(mixed), None

    def _in_place(self, context: Context) -> Blocks | None:
        """Where keys are, if a kernel can read them there."""
        plain = self.indexer is None and context.backend == "auto" and not torch.is_grad_enabled()
        return context.cache.blocks(self._keys) if plain and context.cache is not None else None

    def add_to_few(
        self, x_BTC: Tensor, context: Context, fused_EC: Tensor, output_CE: Tensor
    ) -> Tensor | None:
        """`x_BTC + attention(norm(x_BTC))` by kernels for few tokens in decoding, None when there are none.

        Args:
            x_BTC: the residual stream.
            context: with a cache.
            fused_EC: weights of queries, keys and values, bfloat16.
            output_CE: of the output, bfloat16.
        """
        cache, blocks = context.cache, self._in_place(context)
        if cache is None or blocks is None or not can_take(x_BTC):
            return None
        turned = (self.num_heads + self.num_kv_heads) * self.head_dim
        if self.value_embedding is None:
            projected_BTE = product(x_BTC, fused_EC, normalised=True)
            value_BTE = projected_BTE[..., turned:]
        else:
            normed_BTC = norm(x_BTC)
            projected_BTE = product(normed_BTC, fused_EC)
            value_BTE = self._with_embedding(projected_BTE[..., turned:], normed_BTC, context.ids_BT)
        keys_SGD, values_SGD = cache.slots(self._keys), cache.slots(self._values)
        query_BTHD = turn(
            projected_BTE, value_BTE, self.num_heads, context.angles, self.qk_scale,
            cache.new_slots(self._keys), keys_SGD, values_SGD,
        )  # fmt: skip
        mixed_BTHD = decode_attention(query_BTHD, keys_SGD, values_SGD, blocks, window=self.window)
        return product(mixed_BTHD.flatten(-2), output_CE, residual=x_BTC)

    def _project(self, x_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned and normalised, and values."""
        if self.fused is None:
            query_BHTD = self._turn(self.query(x_BTC), context.angles)
            key_BGTD = self._turn(self.key(x_BTC), context.angles)
            value = self.value(x_BTC)
        else:
            turned = (self.num_heads + self.num_kv_heads) * self.head_dim
            both, value = self.fused(x_BTC).tensor_split([turned], dim=-1)
            query_BHTD, key_BGTD = self._turn(both, context.angles).tensor_split([self.num_heads], dim=1)
        return query_BHTD, key_BGTD, self._heads(self._with_embedding(value, x_BTC, context.ids_BT))

    def _turn(self, projected: Tensor, angles: Angles) -> Tensor:
        return norm(rotate(self._heads(projected), angles)) * self.qk_scale

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _with_embedding(self, value: Tensor, x_BTC: Tensor, ids_BT: Tensor) -> Tensor:
        """Values with the gated embedding of each token (after ResFormer, Zhou et al. 2024)."""
        if self.value_embedding is None:
            return value
        gate_BTG = self.value_gate(x_BTC[..., : self.value_gate.in_features])
        gate_BTG1 = (VALUE_GATE_RANGE * gate_BTG.sigmoid()).unsqueeze(-1)
        embedded = self.value_embedding(ids_BT).to(value.dtype).unflatten(-1, (-1, self.head_dim))
        return value + (gate_BTG1 * embedded).flatten(-2)
