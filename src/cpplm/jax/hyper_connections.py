"""Several residual streams with learned, doubly stochastic mixing (mHC): see `cpplm.model.hyper_connections`,
whose twin this is.

The streams are the first dimension here, not the last but one: a TPU pads the last two to tiles of at least
8 by 128, so that four streams there would take twice to four times their memory.

Shapes: N streams, B batch, T tokens, C model_dim, O scores of a token, N * (2 + N).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from cpplm.jax.layers import Params, norm
from cpplm.model.config import HyperConnectionsConfig

Aux = TypeVar("Aux")


def sinkhorn(logits_NN: jax.Array, iterations: int) -> jax.Array:
    """The doubly stochastic matrices near exp(logits) (Sinkhorn and Knopp 1967), shape NN and others behind.

    Columns are normalised, then rows.
    """

    def normalise(matrix: jax.Array, _: None) -> tuple[jax.Array, None]:
        matrix = matrix / matrix.sum(0, keepdims=True)
        return matrix / matrix.sum(1, keepdims=True), None

    largest = jax.lax.stop_gradient(logits_NN.max((0, 1), keepdims=True))
    return jax.lax.scan(normalise, jnp.exp(logits_NN - largest), None, length=iterations)[0]


def connection_weights(
    weights: Params, x_NBTC: jax.Array, iterations: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Reading weights NBT, writing weights NBT, mixing matrices NNBT (equations 7 and 8), float32."""
    count, width = x_NBTC.shape[0], x_NBTC.shape[-1]
    scores = weights["scores.weight"].astype(x_NBTC.dtype).reshape(-1, count, width)
    scores_OBT = jnp.einsum("nbtc,onc->obt", norm(x_NBTC, (0, -1)), scores).astype(jnp.float32)
    bias_O11 = weights["bias"].astype(jnp.float32)[:, None, None]
    read, write, mix = jnp.split(scores_OBT, [count, 2 * count])
    bias_read, bias_write, bias_mix = jnp.split(bias_O11, [count, 2 * count])
    scales = weights["scales"].astype(jnp.float32)
    mixing = (scales[2] * mix + bias_mix).reshape(count, count, *x_NBTC.shape[1:3])
    reading = jax.nn.sigmoid(scales[0] * read + bias_read)
    writing = 2 * jax.nn.sigmoid(scales[1] * write + bias_write)
    return reading, writing, sinkhorn(mixing, iterations)


def connect(
    weights: Params,
    x_NBTC: jax.Array,
    sublayer: Callable[[jax.Array], tuple[jax.Array, Aux]],
    config: HyperConnectionsConfig,
) -> tuple[jax.Array, Aux]:
    """The streams after `sublayer`, which maps BTC to BTC and something beside it, which is handed on."""
    reading, writing, mixing = (
        array.astype(x_NBTC.dtype)
        for array in connection_weights(weights, x_NBTC, config.sinkhorn_iterations)
    )
    written_BTC, aux = sublayer(jnp.einsum("nbt,nbtc->btc", reading, x_NBTC))
    mixed_NBTC = jnp.einsum("mnbt,nbtc->mbtc", mixing, x_NBTC)
    return mixed_NBTC + writing[..., None] * written_BTC, aux


def expand_streams(x_BTC: jax.Array, config: HyperConnectionsConfig | None) -> jax.Array:
    """The residual stream, or as many copies of it as there are streams, shape NBTC."""
    return x_BTC if config is None else jnp.broadcast_to(x_BTC, (config.num_streams, *x_BTC.shape))


def reduce_streams(x: jax.Array, config: HyperConnectionsConfig | None) -> jax.Array:
    """One residual stream again: the mean of all."""
    return x if config is None else x.mean(0)
