"""Attention of a cpplm model, over a window, the whole context, or an indexer's choice.

Shapes: B batch, T new tokens, Q some of them, S keys in reach, C hidden_size, H query heads, G key-value
heads, D head_dim, J indexer heads, E width of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_cpplm import CpplmConfig
from .memory_cpplm import Past, norm

VALUE_GATE_INPUTS = 12  # channels that gate value embeddings
VALUE_GATE_RANGE = 3.0
BLOCK_ELEMENTS = 2**22  # scores of sparse attention held at once
OWN_ATTENTION = ("sdpa", "eager")  # others, such as vLLM's, bring their own function, and their own cache

Angles = tuple[Tensor, Tensor]


@dataclass
class Context:
    """What every layer of one forward pass is told."""

    ids_BT: Tensor
    positions_BT: Tensor
    angles: Angles
    past: Past
    masks: dict[int | None, Tensor | None]
    """By window."""


def rotary_angles(positions_BT: Tensor, width: int, base: float) -> Angles:
    """Cosines and sines, each of shape (B, 1, T, width / 2), float32."""
    exponents = torch.arange(0, width, 2, device=positions_BT.device, dtype=torch.float32) / width
    angles = (positions_BT.float().unsqueeze(-1) * base**-exponents).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x_BHTD: Tensor, angles: Angles) -> Tensor:
    """Turn pairs (i, i + D/2) by minus the position's angles."""
    cos, sin = angles
    first, second = x_BHTD.float().chunk(2, dim=-1)
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1).to(x_BHTD.dtype)


def attend(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Mixed values, BHTD; without a mask each query sees all keys up to its own."""
    shared = query_BHTD.size(1) != key_BGSD.size(1)
    if shared and query_BHTD.size(2) == 1:
        # Heads that share keys become queries of one head, so that each key is read once.
        query_BGRD = query_BHTD.reshape(query_BHTD.size(0), key_BGSD.size(1), -1, query_BHTD.size(3))
        mixed = F.scaled_dot_product_attention(
            query_BGRD, key_BGSD, value_BGSD, attn_mask=mask, scale=scaling
        )
        return mixed.reshape(query_BHTD.shape)
    causal = mask is None and query_BHTD.size(2) > 1
    return F.scaled_dot_product_attention(
        query_BHTD, key_BGSD, value_BGSD, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=shared
    )


class CpplmIndexer(nn.Module):
    """Scores earlier tokens for each query (DSA, DeepSeek-V3.2, arXiv 2512.02556)."""

    def __init__(self, config: CpplmConfig, layer: int) -> None:
        super().__init__()
        settings: dict[str, int] = config.sparse_attention or {}
        self.width, heads = settings["head_dim"], settings["heads"]
        self.top_k, self.local_window = settings["top_k"], settings["local_window"]
        self.rope_theta = config.rope_theta
        self._keys = f"index keys {layer}"
        self.query = nn.Linear(config.hidden_size, heads * self.width, bias=False)
        self.key = nn.Linear(config.hidden_size, self.width, bias=False)
        self.head_weights = nn.Linear(config.hidden_size, heads, bias=False)

    def forward(self, x_BTC: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries BJTE, keys BSE of all tokens so far, weights BTJ."""
        angles = rotary_angles(context.positions_BT, self.width, self.rope_theta)
        query_BJTE = self.query(x_BTC).unflatten(-1, (-1, self.width)).transpose(1, 2)
        query_BJTE = norm(rotate(query_BJTE, angles))
        key_BTE = norm(rotate(self.key(x_BTC).unsqueeze(1), angles)).squeeze(1)
        weight_BTJ = self.head_weights(x_BTC) * query_BJTE.size(1) ** -0.5
        return query_BJTE, context.past.kept(self._keys, key_BTE), weight_BTJ

    def choose(
        self, query_BJQE: Tensor, key_BSE: Tensor, weight_BQJ: Tensor, distance_QS: Tensor, seen: Tensor
    ) -> Tensor:
        """Of the keys that are seen, the nearest and those of highest score, shape B1QS."""
        batch, heads, queries, _ = query_BJQE.shape
        products = query_BJQE.transpose(1, 2).reshape(batch, queries * heads, -1) @ key_BSE.mT
        positive_BQJS = products.float().relu().view(batch, queries, heads, -1)
        scores_BQS = (weight_BQJ.float().unsqueeze(2) @ positive_BQJS).squeeze(2)
        near_QS = (distance_QS >= 0) & (distance_QS <= self.local_window)
        seen_BQS = seen.squeeze(1)
        ranked_BQS = scores_BQS.masked_fill(near_QS, torch.inf).masked_fill(~seen_BQS, -torch.inf)
        least_BQ1 = ranked_BQS.topk(self.top_k, sorted=False).values.amin(-1, keepdim=True)
        return (seen_BQS & (ranked_BQS >= least_BQ1)).unsqueeze(1)


class CpplmAttention(nn.Module):
    """Attention of one layer: over a window, the whole context, or the indexer's choice."""

    is_causal = True

    def __init__(self, config: CpplmConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.qk_scale**2 * config.head_dim**-0.5
        self.earlier = config.earlier(layer)
        width, kv_width = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.value_embedding: nn.Embedding | None = None
        if layer in config.value_embedding_layers:
            self.value_embedding = nn.Embedding(config.vocab_size, kv_width)
            gates = min(VALUE_GATE_INPUTS, config.hidden_size)
            self.value_gate = nn.Linear(gates, config.num_key_value_heads, bias=False)
        self.indexer = CpplmIndexer(config, layer) if config.is_sparse(layer) else None

    def forward(self, x_BTC: Tensor, context: Context, **kwargs: Any) -> Tensor:
        """BTC to BTC; keys and values of the new tokens go into the cache."""
        query_BHTD = norm(rotate(self._heads(self.q_proj(x_BTC)), context.angles))
        key = norm(rotate(self._heads(self.k_proj(x_BTC)), context.angles))
        value = self._heads(self._valued(x_BTC, context.ids_BT))
        if context.past.cache is not None:
            key, value = context.past.cache.update(key, value, self.layer_idx)
        index = None if self.indexer is None else self.indexer(x_BTC, context)
        kind = self.config._attn_implementation
        if kind not in OWN_ATTENTION:
            mixed_BTHD, _ = ALL_ATTENTION_FUNCTIONS[kind](
                self, query_BHTD, key, value, None, dropout=0.0, scaling=self.scaling,
                sliding_window=None if self.earlier is None else self.earlier + 1, **kwargs,
            )  # fmt: skip
            return self.o_proj(mixed_BTHD.reshape(*x_BTC.shape[:-1], -1))
        if self.indexer is None or index is None or key.size(2) <= self.indexer.top_k:
            mixed_BHTD = attend(query_BHTD, key, value, context.masks[self.earlier], self.scaling)
        else:
            mixed_BHTD = self._attend_to_chosen(self.indexer, query_BHTD, key, value, index, context.past)
        return self.o_proj(mixed_BHTD.transpose(1, 2).flatten(-2))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _valued(self, x_BTC: Tensor, ids_BT: Tensor) -> Tensor:
        """Values, with the gated embedding of each token."""
        value = self.v_proj(x_BTC)
        if self.value_embedding is None:
            return value
        gate_BTG = VALUE_GATE_RANGE * self.value_gate(x_BTC[..., : self.value_gate.in_features]).sigmoid()
        embedded = self.value_embedding(ids_BT).unflatten(-1, (-1, self.head_dim))
        return value + (gate_BTG.unsqueeze(-1) * embedded).flatten(-2)

    def _attend_to_chosen(
        self, indexer: CpplmIndexer, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor,
        index: tuple[Tensor, Tensor, Tensor], past: Past,
    ) -> Tensor:  # fmt: skip
        """A block of queries at a time, so that memory grows with the length and not with its square."""
        index_query_BJTE, index_key_BSE, weight_BTJ = index
        heads = query_BHTD.size(1) + index_query_BJTE.size(1)
        size = max(1, BLOCK_ELEMENTS // (query_BHTD.size(0) * heads * key_BGSD.size(2)))
        mixed = []
        for first in range(0, query_BHTD.size(2), size):
            rows = slice(first, first + size)
            distance_QS = past.distances(None, query_BHTD.device, rows)
            seen = past.visible(None, distance_QS)
            chosen = indexer.choose(
                index_query_BJTE[:, :, rows], index_key_BSE, weight_BTJ[:, rows], distance_QS, seen
            )
            mixed.append(attend(query_BHTD[:, :, rows], key_BGSD, value_BGSD, chosen, self.scaling))
        return torch.cat(mixed, dim=2)
