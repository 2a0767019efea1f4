"""Attention to the keys that an indexer chooses, and the indexer's own loss (DSA, arXiv 2512.02556, section
2): see `cpplm.model.kernels.sparse`, whose twin this is.

A block of queries at a time, in the forward pass and, computed once more, in the backward pass, so memory
grows with the length of the sequence and not with its square. Every block looks at all keys, for its shapes
must be those of any other: half of the products are of hidden keys, and are thrown away. On a mesh each
device cuts its own queries into blocks; it has the keys of the whole row.

Shapes: B batch, T queries, S keys, H query heads, G key-value heads, R query heads per key-value head, D
head_dim, J indexer heads, E indexer_dim, Q queries of one block.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cpplm.jax.mesh_axes import BATCH, CONTEXT, per_shard
from cpplm.model.config import SparseAttentionConfig
from cpplm.model.kernels.sparse import LOWEST


class IndexerOutput(NamedTuple):
    """Output of an indexer: queries BTJE, keys BTE, weights BTJ."""

    query: jax.Array
    key: jax.Array
    weight: jax.Array


class _Queries(NamedTuple):
    """All that belongs to the queries; the second dimension counts them."""

    query_BTHD: jax.Array
    index_BTJE: jax.Array
    weight_BTJ: jax.Array
    position_BT: jax.Array
    document_BT: jax.Array | None


class _Keys(NamedTuple):
    """All that belongs to the keys."""

    key_BSGD: jax.Array
    value_BSGD: jax.Array
    index_BSE: jax.Array
    document_BS: jax.Array | None


def sparse_attention(
    query_BTHD: jax.Array,
    key_BTGD: jax.Array,
    value_BTGD: jax.Array,
    index: IndexerOutput,
    *,
    config: SparseAttentionConfig,
    document_ids: jax.Array | None,
    dense: jax.Array | bool,
    block: int,
    mesh: Mesh | None,
) -> tuple[jax.Array, jax.Array]:
    """Causal attention to the chosen keys.

    Args:
        query_BTHD: queries.
        key_BTGD: keys, G dividing H.
        value_BTGD: values.
        index: of the same tokens; only the divergence has a gradient in it.
        config: how many keys are chosen.
        document_ids: which document each token belongs to, BT, or None; a query sees its own alone.
        dense: all visible keys are chosen, as in the indexer's warm-up; may change from step to step.
        block: queries whose scores a device holds at once.
        mesh: of devices.

    Returns:
        The mixed values, BTHD, and the indexer's divergence in nats, BT, float32.
    """
    batch, length = query_BTHD.shape[:2]
    positions_BT = jnp.broadcast_to(jnp.arange(length), (batch, length))
    queries = _Queries(query_BTHD, index.query, index.weight, positions_BT, document_ids)
    keys = _Keys(key_BTGD, value_BTGD, index.key, document_ids)
    run = per_shard(
        functools.partial(_attend_in_blocks, config=config, block=block),
        mesh,
        in_specs=(P(BATCH, CONTEXT), P(BATCH), P()),
        out_specs=(P(BATCH, CONTEXT), P(BATCH, CONTEXT)),
    )
    mixed_BTHD, divergence_BT = run(queries, keys, jnp.asarray(dense))
    return mixed_BTHD, divergence_BT


def _attend_in_blocks(
    queries: _Queries, keys: _Keys, dense: jax.Array, *, config: SparseAttentionConfig, block: int
) -> tuple[jax.Array, jax.Array]:
    batch, length = queries.position_BT.shape
    block = min(block, length)
    padding = -length % block

    def cut(x: jax.Array) -> jax.Array:
        """Blocks in front; the last one is filled with zeros."""
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, -1, block, *x.shape[2:]), 1, 0)

    def join(x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(batch, -1, *x.shape[3:])[:, :length]

    of_block = jax.checkpoint(functools.partial(_attend_block, keys=keys, dense=dense, config=config))
    mixed, divergence = jax.lax.map(of_block, jax.tree.map(cut, queries))
    return join(mixed), join(divergence)


def _attend_block(
    queries: _Queries, *, keys: _Keys, dense: jax.Array, config: SparseAttentionConfig
) -> tuple[jax.Array, jax.Array]:
    """Some queries over all keys."""
    query_BQHD, groups = queries.query_BTHD, keys.key_BSGD.shape[2]
    positive_BQJS = jax.nn.relu(
        jnp.einsum("bqje,bse->bqjs", queries.index_BTJE, keys.index_BSE, preferred_element_type=jnp.float32)
    )
    index_BQS = jnp.einsum("bqj,bqjs->bqs", queries.weight_BTJ.astype(jnp.float32), positive_BQJS)
    distance_BQS = queries.position_BT[:, :, None] - jnp.arange(keys.key_BSGD.shape[1])
    visible_BQS = distance_BQS >= 0
    if queries.document_BT is not None and keys.document_BS is not None:
        visible_BQS &= queries.document_BT[:, :, None] == keys.document_BS[:, None, :]
    near_BQS = (distance_BQS >= 0) & (distance_BQS <= config.local_window)
    chosen_BQS = visible_BQS & (dense | _select_keys(index_BQS, visible_BQS, near_BQS, config.top_k))
    query_BQGRD = query_BQHD.reshape(*query_BQHD.shape[:2], groups, -1, query_BQHD.shape[-1])
    scores_BGRQS = jnp.einsum(
        "bqgrd,bsgd->bgrqs", query_BQGRD, keys.key_BSGD, preferred_element_type=jnp.float32
    )
    scores_BGRQS = jnp.where(chosen_BQS[:, None, None], scores_BGRQS * query_BQHD.shape[-1] ** -0.5, LOWEST)
    weights_BGRQS = jax.nn.softmax(scores_BGRQS, axis=-1)
    mixed_BQGRD = jnp.einsum(
        "bgrqs,bsgd->bqgrd", weights_BGRQS.astype(keys.value_BSGD.dtype), keys.value_BSGD
    )
    target_BQS = jax.lax.stop_gradient(weights_BGRQS).mean((1, 2))
    log_BQS = jax.nn.log_softmax(jnp.where(chosen_BQS, index_BQS, LOWEST), axis=-1)
    divergence_BQ = (target_BQS * (jnp.log(jnp.maximum(target_BQS, 1e-30)) - log_BQS)).sum(-1)
    return mixed_BQGRD.reshape(query_BQHD.shape), divergence_BQ


def _select_keys(index_BQS: jax.Array, visible_BQS: jax.Array, near_BQS: jax.Array, top_k: int) -> jax.Array:
    """True for the keys of highest score, those nearby first; also for all that tie with the last of them."""
    if top_k >= index_BQS.shape[-1]:
        return visible_BQS
    ranked_BQS = jnp.where(near_BQS, jnp.inf, jax.lax.stop_gradient(index_BQS))
    ordered_BQS = _ordered(jnp.where(visible_BQS, ranked_BQS, -jnp.inf))
    return ordered_BQS >= _kth_largest(ordered_BQS, top_k)


def _ordered(x: jax.Array) -> jax.Array:
    """Unsigned integers in the order of these float32 numbers; 0 and -0 are the same."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _kth_largest(x: jax.Array, k: int) -> jax.Array:
    """The k-th largest of the last dimension, which stays as 1, of unsigned integers.

    Bit by bit from the highest: the largest number that at least k are not below. A TPU has no selection,
    only a full sort, which for thousands of keys takes several times as many passes over them as these 32,
    and minutes to compile.
    """

    def with_bit(step: int, found: jax.Array) -> jax.Array:
        candidate = found | (jnp.uint32(1 << 31) >> jnp.uint32(step))
        enough = (x >= candidate).sum(-1, keepdims=True) >= k
        return jnp.where(enough, candidate, found)

    start = jnp.zeros((*x.shape[:-1], 1), jnp.uint32)
    return jax.lax.fori_loop(0, 32, with_bit, start)
