"""One transformer layer: n-gram memory, attention, MLP, each added to the residual stream or streams.

Shapes: B batch, T tokens, C model_dim; `x` is the residual stream BTC, or streams NBTC with
hyper-connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

from cpplm.jax.attention.layer import ForwardContext, attention_layer
from cpplm.jax.hyper_connections import connect
from cpplm.jax.layer_scan import LayerKind
from cpplm.jax.layers import Params, mlp, norm, subtree
from cpplm.jax.mesh_axes import BATCH, CONTEXT, constrain

Aux = TypeVar("Aux")


def block(
    weights: Params, x: jax.Array, kind: LayerKind, context: ForwardContext
) -> tuple[jax.Array, jax.Array]:
    """The residual stream or streams after attention and MLP, and the indexer's divergence."""

    def attend(x_BTC: jax.Array) -> tuple[jax.Array, jax.Array]:
        return attention_layer(subtree(weights, "attention."), norm(x_BTC), kind, context)

    def feed_forward(x_BTC: jax.Array) -> tuple[jax.Array, None]:
        return mlp(subtree(weights, "mlp."), norm(x_BTC), context.config.mlp, context.mesh), None

    x, divergence = add_sublayer("attention", weights, x, attend, context)
    x, _ = add_sublayer("mlp", weights, x, feed_forward, context)
    return x, divergence


def add_sublayer(
    name: str,
    weights: Params,
    x: jax.Array,
    sublayer: Callable[[jax.Array], tuple[jax.Array, Aux]],
    context: ForwardContext,
) -> tuple[jax.Array, Aux]:
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
            x, aux = connect(subtree(weights, f"connections.{name}."), x, sublayer, streams)
        else:
            written_BTC, aux = sublayer(x)
            x = x + written_BTC
    return constrain_activations(x, context), aux


def constrain_activations(x: jax.Array, context: ForwardContext) -> jax.Array:
    """The residual stream or streams, divided over the mesh by batch and sequence."""
    return constrain(x, *[None] * (x.ndim - 3), BATCH, CONTEXT, None, mesh=context.mesh)
