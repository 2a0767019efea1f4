"""The token that followed the same tokens before: the twin of `cpplm.model.induction`.

Shapes: B batch, T tokens, C model_dim, L lengths of matches.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cpplm.jax.layers import Params, linear, shift_right
from cpplm.model.config import INDUCTION_LENGTHS


def match_next_token(ids_BT: jax.Array, documents_BT: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The token that followed the longest earlier match, and which length matched, from 1; 0 for none.

    Args:
        ids_BT: rows from their start.
        documents_BT: matches are of the document that each token names.
    """
    places_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
    halves = (ids_BT, jnp.zeros_like(ids_BT) if documents_BT is None else documents_BT)
    ranks_BT = ids_BT
    found_BT = lengths_BT = jnp.zeros_like(ids_BT)
    for number, run in enumerate(INDUCTION_LENGTHS, 1):
        if run > 1:
            # What would begin before the row is equal to nothing.
            last_BT = jnp.where(places_BT >= run - 1, ranks_BT, -1 - places_BT)
            halves = (last_BT, shift_right(ranks_BT, run // 2))
        latest_BT, ranks_BT = _latest_match(halves, places_BT)
        followed_BT = jnp.take_along_axis(ids_BT, latest_BT, axis=1)
        found_BT = jnp.where(latest_BT > 0, followed_BT, found_BT)
        lengths_BT = jnp.where(latest_BT > 0, number, lengths_BT)
    return found_BT, lengths_BT


def _latest_match(keys: tuple[jax.Array, jax.Array], places_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The place behind the latest earlier token with the same keys, 0 for none, and ranks of the keys."""
    *sorted_keys, order_BT = jax.lax.sort((*keys, places_BT), dimension=1, is_stable=True, num_keys=2)
    same_BT = jnp.ones(order_BT.shape, bool).at[:, 0].set(False)
    for key_BT in sorted_keys:
        same_BT = same_BT & (key_BT == shift_right(key_BT, 1))
    latest_BT = jnp.where(same_BT, shift_right(order_BT, 1) + 1, 0)
    # Back to the order of the tokens by another sort: TPUs scatter slowly.
    _, latest_BT, ranks_BT = jax.lax.sort(
        (order_BT, latest_BT, jnp.cumsum(~same_BT, axis=1)), dimension=1, num_keys=1
    )
    return latest_BT, ranks_BT


def induction_embedding(weights: Params, embedded_BTC: jax.Array, lengths_BT: jax.Array) -> jax.Array:
    """Compute what is added to the embeddings, shape BTC.

    Args:
        weights: `mix.weight` and `scales`.
        embedded_BTC: embeddings of what followed the matches.
        lengths_BT: which length matched.
    """
    scales_L = weights["scales"].astype(jnp.float32)
    chosen_BTL = lengths_BT[..., None] == jnp.arange(1, len(scales_L) + 1)
    scales_BT = (chosen_BTL * scales_L).sum(-1)  # its gradient is a sum, too, and not one addition per token
    mixed_BTC = linear(embedded_BTC, weights["mix.weight"])
    return (scales_BT[..., None] * mixed_BTC.astype(jnp.float32)).astype(mixed_BTC.dtype)
