"""Memory of n-grams, read beside the layers: the twin of `cpplm.model.engram`.

Shapes: B batch, T tokens, C model_dim, N longest order, K tables (orders times hash heads), X bottleneck, or
all tables' embeddings beside each other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cpplm.jax.layers import Params, linear, norm, shift_right
from cpplm.model.config import EngramConfig


def embed_ngrams(
    table: jax.Array, constants: Params, ids_BT: jax.Array, documents_BT: jax.Array | None, dtype: jnp.dtype
) -> jax.Array:
    """The embeddings of the n-grams that end at each token, shape BTX.

    Args:
        table: of one layer, all its tables below each other.
        constants: the layer's `canonical_V`, `rows_K`, `offsets_K` and `multipliers_KN`, uint32.
        ids_BT: the tokens.
        documents_BT: n-grams stay inside the document that each token names; None for one.
        dtype: of the result.
    """
    found_BTKE = table[table_rows(constants, ids_BT, documents_BT)].astype(dtype)
    return found_BTKE.reshape(*ids_BT.shape, -1)


def table_rows(constants: Params, ids_BT: jax.Array, documents_BT: jax.Array | None = None) -> jax.Array:
    """Rows of the table to read, shape BTK, uint32: the checkpoint's hash functions in 32-bit arithmetic.

    Before the start of the sequence, or of the document, stands id 0, which is padding.
    """
    canonical_BT = constants["canonical_V"][ids_BT]
    multipliers_KN = constants["multipliers_KN"]
    hashed_BTK = jnp.zeros((*ids_BT.shape, multipliers_KN.shape[0]), jnp.uint32)
    for distance in range(multipliers_KN.shape[1]):
        ids_BT1 = shift_right(canonical_BT, distance, documents_BT)[..., None] + jnp.uint32(1)
        hashed_BTK = hashed_BTK ^ (ids_BT1 * multipliers_KN[:, distance])  # wraps at 2^32
    hashed_BTK = hashed_BTK ^ (hashed_BTK >> jnp.uint32(15))
    return hashed_BTK % constants["rows_K"] + constants["offsets_K"]


def engram_memory(
    weights: Params,
    x_BTC: jax.Array,
    found_BTX: jax.Array,
    documents_BT: jax.Array | None,
    engram: EngramConfig,
) -> jax.Array:
    """Compute the memory's part of the residual stream, shape BTC.

    Args:
        weights: `key`, `value` and `taps` of one layer.
        x_BTC: the normalised residual stream.
        found_BTX: what `embed_ngrams` gave.
        documents_BT: nothing is read of another document than the token's own; None for one.
        engram: its configuration.
    """
    key_BTC = norm(linear(found_BTX, weights["key.weight"]))
    score_BT1 = (x_BTC * key_BTC).sum(-1, keepdims=True) * x_BTC.shape[-1] ** -0.5
    gate_BT1 = jax.nn.sigmoid(score_BT1.astype(jnp.float32)).astype(x_BTC.dtype)
    gated_BTC = gate_BT1 * linear(found_BTX, weights["value.weight"])
    normed_BTC, taps = norm(gated_BTC), weights["taps"].astype(x_BTC.dtype)
    longest = max(engram.ngram_orders)
    spread_BTC = sum(
        taps[tap] * shift_right(normed_BTC, longest * tap, documents_BT) for tap in range(engram.kernel_size)
    )
    return gated_BTC + jax.nn.silu(spread_BTC)


def engram_branch(
    weights: Params, x_BTC: jax.Array, documents_BT: jax.Array | None, engram: EngramConfig
) -> jax.Array:
    """Compute the part of the residual stream of the branch over the last states, shape BTC."""
    reduced_BTX = linear(x_BTC, weights["reduce.weight"])
    taps, first = weights["taps"].astype(x_BTC.dtype), 0
    total_BTX = jnp.zeros_like(reduced_BTX)
    for order in engram.ngram_orders:
        mixed_BTX = sum(
            taps[first + back] * shift_right(reduced_BTX, back, documents_BT) for back in range(order)
        )
        total_BTX = total_BTX + jax.nn.silu(mixed_BTX)
        first += order
    return linear(total_BTX, weights["expand.weight"])
