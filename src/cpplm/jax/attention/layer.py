"""Causal self-attention of one layer: see `cpplm.model.attention`, whose twin this is.

Shapes: B batch, T tokens, C model_dim, H query heads, G key-value heads, D head_dim, J indexer heads, E
indexer_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from cpplm.jax.attention.dispatch import attend
from cpplm.jax.layer_scan import LayerKind
from cpplm.jax.layers import Angles, Params, linear, norm, rotary_angles, rotate, subtree
from cpplm.jax.mesh_axes import BATCH, CONTEXT, MODEL, constrain
from cpplm.jax.settings import RunSettings
from cpplm.jax.sparse import IndexerOutput, sparse_attention
from cpplm.model.attention import VALUE_GATE_RANGE
from cpplm.model.config import ModelConfig


@dataclass(frozen=True)
class ForwardContext:
    """All that every layer of one forward pass shares.

    `documents_BT` names the document of each token, to keep attention inside it; `dense` lets sparse layers
    attend to everything while their indexer warms up.
    """

    config: ModelConfig
    run: RunSettings
    mesh: Mesh | None
    ids_BT: jax.Array
    angles: Angles
    documents_BT: jax.Array | None
    dense: jax.Array | bool


def attention_layer(
    weights: Params, x_BTC: jax.Array, kind: LayerKind, context: ForwardContext
) -> tuple[jax.Array, jax.Array]:
    """BTC to BTC, and the indexer's mean divergence in nats, 0 without one."""
    config, mesh = context.config, context.mesh
    query_BTHD = _rope_norm(_heads(linear(x_BTC, weights["query.weight"]), context), context)
    key_BTGD = _rope_norm(_heads(linear(x_BTC, weights["key.weight"]), context), context)
    value_BTGD = _heads(linear(x_BTC, weights["value.weight"]), context)
    if kind.has_value_embedding:
        value_BTGD = value_BTGD + _gated_embedding(weights, x_BTC, context)
    divergence = jnp.zeros(())
    if kind.is_sparse:
        assert config.dsa is not None  # noqa: S101  (such a layer exists only then)
        mixed_BTHD, divergence_BT = sparse_attention(
            query_BTHD, key_BTGD, value_BTGD, _indexer_output(subtree(weights, "indexer."), x_BTC, context),
            config=config.dsa, document_ids=context.documents_BT, dense=context.dense,
            block=context.run.sparse_block, mesh=mesh,
        )  # fmt: skip
        divergence = divergence_BT.mean()
    else:
        mixed_BTHD = attend(
            query_BTHD, key_BTGD, value_BTGD, window=kind.window, document_ids=context.documents_BT,
            kind=context.run.jax_attention, mesh=mesh,
        )  # fmt: skip
    mixed_BTHD = checkpoint_name(constrain(mixed_BTHD, BATCH, CONTEXT, MODEL, None, mesh=mesh), "attention")
    return linear(mixed_BTHD.reshape(*x_BTC.shape[:2], -1), weights["output.weight"]), divergence


def _heads(projected: jax.Array, context: ForwardContext) -> jax.Array:
    heads = projected.reshape(*projected.shape[:2], -1, context.config.head_dim)
    return constrain(heads, BATCH, CONTEXT, MODEL, None, mesh=context.mesh)


def _rope_norm(heads: jax.Array, context: ForwardContext) -> jax.Array:
    rotated = rotate(heads, context.angles)
    return norm(rotated) * context.config.qk_scale if context.config.qk_norm else rotated


def _gated_embedding(weights: Params, x_BTC: jax.Array, context: ForwardContext) -> jax.Array:
    """Gate each token's own embedding, a part of its values, BTGD (ResFormer, Zhou et al. 2024)."""
    inputs = weights["value_gate.weight"].shape[1]
    gate_BTG = jax.nn.sigmoid(linear(x_BTC[..., :inputs], weights["value_gate.weight"]))
    embedded = weights["value_embedding.weight"][context.ids_BT].astype(x_BTC.dtype)
    return (VALUE_GATE_RANGE * gate_BTG)[..., None] * _heads(embedded, context)


def _indexer_output(weights: Params, x_BTC: jax.Array, context: ForwardContext) -> IndexerOutput:
    """Scores' parts of earlier tokens for each query; no gradient flows back into the residual stream."""
    assert context.config.dsa is not None  # noqa: S101  (the caller asked)
    heads, width = context.config.dsa.indexer_heads, context.config.dsa.indexer_dim
    x_BTC = jax.lax.stop_gradient(x_BTC)
    angles = rotary_angles(x_BTC.shape[1], width, context.config.rope_base)
    query_BTJE = linear(x_BTC, weights["query.weight"]).reshape(*x_BTC.shape[:2], heads, width)
    key_BT1E = linear(x_BTC, weights["key.weight"])[:, :, None]
    return IndexerOutput(
        query=norm(rotate(query_BTJE, angles)),
        key=norm(rotate(key_BT1E, angles))[:, :, 0],
        weight=linear(x_BTC, weights["head_weights.weight"]) * heads**-0.5,
    )
