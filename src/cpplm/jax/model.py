"""The training losses of `cpplm.model.transformer` in JAX: functions of a dictionary of arrays.

`loss` is what training differentiates; every part of it has a name that the profiler shows.

Shapes: B batch, T tokens, C model_dim, V vocabulary with its padding.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NotRequired, TypedDict

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cpplm.jax.attention.layer import Context
from cpplm.jax.block import block, lay_out
from cpplm.jax.decoder import recomputed, trunk
from cpplm.jax.hyper_connections import from_streams, to_streams
from cpplm.jax.induction import followers, told
from cpplm.jax.layer_scan import layer_kinds
from cpplm.jax.layers import Params, before, linear, norm, part, rotary_angles, scaled
from cpplm.jax.loss import cross_entropy
from cpplm.jax.multi_token import shifted_targets
from cpplm.jax.settings import RunSettings
from cpplm.model.config import ModelConfig


class Batch(TypedDict):
    """What a step is given. Scalars may change from step to step without compiling again."""

    inputs: jax.Array
    """Ids, BT, int32."""
    targets: jax.Array
    """The id that follows each, or `IGNORED`, BT, int32."""
    documents: NotRequired[jax.Array]
    """Attention stays inside the document that each token names, BT, int32."""
    multi_token_weight: NotRequired[jax.Array | float]
    """Of the mean loss of the heads that predict further tokens; 0 unless given."""
    dense_attention: NotRequired[jax.Array | bool]
    """Sparse layers attend to everything, as in the warm-up of their indexers."""


def loss(
    params: Params, batch: Batch, config: ModelConfig, run: RunSettings, *, mesh: Mesh | None = None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What training minimises, in nats per token, and its parts.

    Args:
        params: of `cpplm.jax.param_stacking.stack`; gradients are for its floats (`layout.partition`).
        batch: tokens and targets.
        config: the model.
        run: how it is computed.
        mesh: of devices, its axes named as in `cpplm.jax.mesh_axes`.

    Returns:
        The total, and `next_token`, `multi_token` and `indexer`; 0 for what the model does not have. All
        float32.
    """
    context = Context(
        config, run, mesh, batch["inputs"],
        rotary_angles(batch["inputs"].shape[1], config.head_dim, config.rope_base),
        batch.get("documents"), batch.get("dense_attention", False),
    )  # fmt: skip
    hidden_BTC, indexer = hidden_states(params, context)
    next_token = _head_loss(params, hidden_BTC, batch["targets"], context)
    multi_token = _multi_token_loss(params, hidden_BTC, batch["targets"], context)
    total = next_token + batch.get("multi_token_weight", 0.0) * multi_token + indexer
    return total, {"next_token": next_token, "multi_token": multi_token, "indexer": indexer}


def hidden_states(params: Params, context: Context) -> tuple[jax.Array, jax.Array]:
    """Normalised output of the last layer, BTC, and the mean divergence of the indexers."""
    config = context.config
    with jax.named_scope("embedding"):
        embedded_BTC = _smear(params, _embed(params, context.ids_BT, context), context)
    if config.induction:
        with jax.named_scope("induction"):
            found_BT, lengths_BT = followers(context.ids_BT, context.documents_BT)
            found_BTC = _embed(params, found_BT, context)
            embedded_BTC = embedded_BTC + told(part(params, "induction."), found_BTC, lengths_BT)
    x, middle, divergence = trunk(params, to_streams(embedded_BTC, config.hyper_connections), context)
    if config.backout:
        x = x - scaled(middle, params["backout_scale"])
    sparse_layers = sum(config.is_sparse(layer) for layer in range(config.num_layers))
    return norm(from_streams(x, config.hyper_connections)), divergence / max(1, sparse_layers)


def logits(params: Params, hidden_BTC: jax.Array, config: ModelConfig) -> jax.Array:
    """Capped float32 logits of the real vocabulary, shape (B, T, vocab_size)."""
    products = linear(hidden_BTC, params["lm_head.weight"])[..., : config.vocab_size].astype(jnp.float32)
    return config.logit_softcap * jnp.tanh(products / config.logit_softcap)


def _embed(params: Params, ids_BT: jax.Array, context: Context) -> jax.Array:
    return lay_out(norm(params["embedding.weight"][ids_BT].astype(context.run.dtype)), context)


def _smear(params: Params, embedded_BTC: jax.Array, context: Context) -> jax.Array:
    """Each token's embedding with a gated share of the one before it."""
    if not context.config.smear:
        return embedded_BTC
    weight = params["smear_gate.weight"]
    gate_BT1 = jax.nn.sigmoid(linear(embedded_BTC[..., : weight.shape[1]], weight))
    return embedded_BTC + scaled(gate_BT1 * before(embedded_BTC, 1), params["smear_scale"])


def _head_loss(params: Params, hidden_BTC: jax.Array, targets_BT: jax.Array, context: Context) -> jax.Array:
    config = context.config
    with jax.named_scope("lm_head"):
        return cross_entropy(
            hidden_BTC, params["lm_head.weight"], targets_BT, vocab_size=config.vocab_size,
            softcap=config.logit_softcap, chunk=context.run.loss_chunk, mesh=context.mesh,
        )  # fmt: skip


def _multi_token_loss(
    params: Params, hidden_BTC: jax.Array, targets_BT: jax.Array, context: Context
) -> jax.Array:
    """Mean loss of the heads that predict further tokens, each of which goes on from the one before it."""
    depth = context.config.mtp.depth if context.config.mtp else 0
    plain = replace(context, config=context.config.multi_token_block())
    (kind,) = layer_kinds(plain.config)
    total = jnp.zeros(())
    for head, (next_ids_BT, further_BT) in enumerate(shifted_targets(targets_BT, depth)):
        with jax.named_scope(f"multi_token_{head}"):
            weights = part(params, f"multi_token.{head}.")
            both = jnp.concatenate((hidden_BTC, _embed(params, next_ids_BT, context)), axis=-1)
            merged_BTC = lay_out(linear(both, weights["merge.weight"]), context)
            run = recomputed(partial(block, kind=kind, context=plain), context.run, in_loop=False)
            states_BTC, _ = run(part(weights, "block."), merged_BTC)
            hidden_BTC = norm(states_BTC)
            total = total + _head_loss(params, hidden_BTC, further_BT, context) / depth
    return total
