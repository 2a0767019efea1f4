"""One transformer layer: n-gram memory, attention, MLP, each added to the residual stream or streams.

Shapes: B batch, T tokens, C model_dim; `x` is the residual stream BTC, or streams NBTC with
hyper-connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

from cpplm.jax.attention.layer import Context, attention_layer
from cpplm.jax.hyper_connections import connect
from cpplm.jax.layer_scan import LayerKind
from cpplm.jax.layers import Params, mlp, norm, part
from cpplm.jax.mesh_axes import BATCH, CONTEXT, constrain

Aside = TypeVar("Aside")


def block(weights: Params, x: jax.Array, kind: LayerKind, context: Context) -> tuple[jax.Array, jax.Array]:
    """The residual stream or streams after attention and MLP, and the indexer's divergence."""

    def attend(x_BTC: jax.Array) -> tuple[jax.Array, jax.Array]:
        return attention_layer(part(weights, "attention."), norm(x_BTC), kind, context)

    def feed_forward(x_BTC: jax.Array) -> tuple[jax.Array, None]:
        return mlp(part(weights, "mlp."), norm(x_BTC), context.config.mlp, context.mesh), None

    x, divergence = add("attention", weights, x, attend, context)
    x, _ = add("mlp", weights, x, feed_forward, context)
    return x, divergence


def add(
    name: str,
    weights: Params,
    x: jax.Array,
    sublayer: Callable[[jax.Array], tuple[jax.Array, Aside]],
    context: Context,
) -> tuple[jax.Array, Aside]:
    """Add what a sublayer makes of the residual stream to it.

    Args:
        name: of the sublayer, in the weights of its hyper-connection and in the profiler.
        weights: of the layer.
        x: the residual stream or streams.
        sublayer: BTC to BTC and something beside it, which is handed on.
        context: of the pass.
    """
    streams = context.config.hyper_connections
    with jax.named_scope(name):
        if streams is not None:
            x, aside = connect(part(weights, f"connections.{name}."), x, sublayer, streams)
        else:
            written_BTC, aside = sublayer(x)
            x = x + written_BTC
    return lay_out(x, context), aside


def lay_out(x: jax.Array, context: Context) -> jax.Array:
    """The residual stream or streams, divided over the mesh by batch and sequence."""
    return constrain(x, *[None] * (x.ndim - 3), BATCH, CONTEXT, None, mesh=context.mesh)
