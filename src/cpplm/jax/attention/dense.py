"""Attention that makes every score: the reference, for short rows, and what runs on any device.

In `ModelConfig`, a window of w lets a token see itself and the w tokens before it: 0 <= i - j <= w. So count
JAX's `local_window_size=(left, 0)`, splash attention's `LocalMask` and FlashAttention's `window_size`:
neighbours to the left, the token itself not among them. (A mask of `i - j < n` sees n tokens in all: a
window of n - 1.)

Shapes: B batch, T tokens, S keys, H query heads, G key-value heads, R = H / G, D head_dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def left_window(window: int | None, length: int) -> int | None:
    """Count the earlier tokens that are visible in a row of `length`; None where that is all of them."""
    return None if window is None or window >= length - 1 else window


def attention_mask(length: int, window: int | None, document_ids: Array | None) -> Array:
    """True where query i may look at key j: shape 11TS, or B1TS with documents."""
    left = left_window(window, length)
    distance_TS = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
    mask_TS = distance_TS >= 0
    if left is not None:
        mask_TS &= distance_TS <= left
    mask_11TS = mask_TS[None, None]
    if document_ids is None:
        return mask_11TS
    return mask_11TS & (document_ids[:, None, :, None] == document_ids[:, None, None, :])


def dense_attention(
    query_BTHD: Array,
    key_BTGD: Array,
    value_BTGD: Array,
    *,
    window: int | None = None,
    document_ids: Array | None = None,
) -> Array:
    """Causal attention by two products and a softmax in float32, whatever the dtype of its inputs.

    Arguments and result are those of `cpplm.model.kernels.attention.attention`, here with all tokens as
    queries and the positions before the heads. Memory: B * H * T * T scores.
    """
    batch, length, heads, width = query_BTHD.shape
    groups = key_BTGD.shape[2]
    query_BTGRD = query_BTHD.reshape(batch, length, groups, heads // groups, width)
    score_BGRTS = (
        jnp.einsum("btgrd,bsgd->bgrts", query_BTGRD, key_BTGD, preferred_element_type=jnp.float32)
        * width**-0.5
    )
    mask_B11TS = attention_mask(length, window, document_ids)[:, :, None]
    weight_BGRTS = jax.nn.softmax(jnp.where(mask_B11TS, score_BGRTS, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bgrts,bsgd->btgrd", weight_BGRTS.astype(value_BTGD.dtype), value_BTGD)
    return mixed.reshape(query_BTHD.shape).astype(query_BTHD.dtype)


def xla_attention(
    query_BTHD: Array,
    key_BTGD: Array,
    value_BTGD: Array,
    *,
    window: int | None = None,
    document_ids: Array | None = None,
) -> Array:
    """The same by `jax.nn.dot_product_attention`, which XLA compiles; arguments as in `dense_attention`."""
    left = left_window(window, query_BTHD.shape[1])
    mask = None
    if document_ids is not None:
        mask = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return jax.nn.dot_product_attention(
        query_BTHD,
        key_BTGD,
        value_BTGD,
        mask=mask,
        is_causal=True,
        local_window_size=None if left is None else (left, 0),
        implementation="xla",
    )
