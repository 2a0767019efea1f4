"""The training losses of `cpplm.model.transformer` in JAX: functions of a dictionary of arrays.

`loss` is what training differentiates; every part of it has a name that the profiler shows.

Shapes: B batch, T tokens, C model_dim, V vocabulary with its padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NotRequired, TypedDict

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cpplm.jax.attention.layer import ForwardContext
from cpplm.jax.block import block, constrain_activations
from cpplm.jax.decoder import decoder_layers, remat
from cpplm.jax.hyper_connections import expand_streams, reduce_streams
from cpplm.jax.induction import induction_embedding, match_next_token
from cpplm.jax.layer_scan import layer_kinds
from cpplm.jax.layers import Params, linear, norm, rotary_angles, scale_by, shift_right, subtree
from cpplm.jax.loss import cross_entropy
from cpplm.jax.settings import RunSettings
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.special_tokens import IGNORE_INDEX


class TrainBatch(TypedDict):
    """Input of a step. Scalars may change from step to step without compiling again."""

    inputs: jax.Array
    """Ids, BT, int32."""
    targets: jax.Array
    """The id that follows each, or `IGNORE_INDEX`, BT, int32."""
    documents: NotRequired[jax.Array]
    """Attention stays inside the document that each token names, BT, int32."""
    multi_token_weight: NotRequired[jax.Array | float]
    """Weight of the mean loss of the heads that predict further tokens; 0 unless given."""
    target_shares: NotRequired[jax.Array]
    """Factors on the mean losses of the next token and of each such head, shape (1 + heads,); else 1."""
    dense_attention: NotRequired[jax.Array | bool]
    """Sparse layers attend to everything, as in the warm-up of their indexers."""


def loss(
    params: Params, batch: TrainBatch, config: ModelConfig, run: RunSettings, *, mesh: Mesh | None = None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the loss that training minimizes, in nats per token, and its parts.

    Args:
        params: as `cpplm.jax.param_stacking` stacks them; gradients are for the floats among them
            (`partition_params`).
        batch: tokens and targets.
        config: the model.
        run: how it is computed.
        mesh: of devices, its axes named as in `cpplm.jax.mesh_axes`.

    Returns:
        The total, and `next_token`, `multi_token` and `indexer`; 0 for what the model does not have. All
        float32.
    """
    context = ForwardContext(
        config, run, mesh, batch["inputs"],
        rotary_angles(batch["inputs"].shape[1], config.head_dim, config.rope_base),
        batch.get("documents"), batch.get("dense_attention", False),
    )  # fmt: skip
    hidden_BTC, indexer = hidden_states(params, context)
    shares = batch.get("target_shares", jnp.ones(1 + _heads(config)))
    next_token = shares[0] * _head_loss(params, hidden_BTC, batch["targets"], context)
    multi_token = _multi_token_loss(params, hidden_BTC, batch["targets"], shares[1:], context)
    total = next_token + batch.get("multi_token_weight", 0.0) * multi_token + indexer
    return total, {"next_token": next_token, "multi_token": multi_token, "indexer": indexer}


def hidden_states(params: Params, context: ForwardContext) -> tuple[jax.Array, jax.Array]:
    """Normalised output of the last layer, BTC, and the mean divergence of the indexers."""
    config = context.config
    with jax.named_scope("embedding"):
        embedded_BTC = _smear(params, _embed(params, context.ids_BT, context), context)
    if config.induction:
        with jax.named_scope("induction"):
            found_BT, lengths_BT = match_next_token(context.ids_BT, context.documents_BT)
            found_BTC = _embed(params, found_BT, context)
            embedded_BTC = embedded_BTC + induction_embedding(
                subtree(params, "induction."), found_BTC, lengths_BT
            )
    x, middle, divergence = decoder_layers(
        params, expand_streams(embedded_BTC, config.hyper_connections), context
    )
    if config.backout:
        x = x - scale_by(middle, params["backout_scale"])
    sparse_layers = sum(config.is_sparse(layer) for layer in range(config.num_layers))
    return norm(reduce_streams(x, config.hyper_connections)), divergence / max(1, sparse_layers)


def token_losses(
    params: Params,
    ids_BT: jax.Array,
    targets_BT: jax.Array,
    config: ModelConfig,
    run: RunSettings,
    *,
    mesh: Mesh | None = None,
) -> jax.Array:
    """Cross-entropy of each next token in nats, BT, float32; 0 where the target is `IGNORE_INDEX`."""
    angles = rotary_angles(ids_BT.shape[1], config.head_dim, config.rope_base)
    context = ForwardContext(config, run, mesh, ids_BT, angles, None, False)
    return _head_loss(params, hidden_states(params, context)[0], targets_BT, context, "none")


def _embed(params: Params, ids_BT: jax.Array, context: ForwardContext) -> jax.Array:
    embedded_BTC = params["embedding.weight"][ids_BT].astype(context.run.dtype)
    return constrain_activations(
        norm(embedded_BTC) if context.config.embedding_norm else embedded_BTC, context
    )


def _smear(params: Params, embedded_BTC: jax.Array, context: ForwardContext) -> jax.Array:
    """Each token's embedding with a gated share of the one before it."""
    if not context.config.smear:
        return embedded_BTC
    weight = params["smear_gate.weight"]
    gate_BT1 = jax.nn.sigmoid(linear(embedded_BTC[..., : weight.shape[1]], weight))
    return embedded_BTC + scale_by(
        gate_BT1 * shift_right(embedded_BTC, 1, context.documents_BT), params["smear_scale"]
    )


def _head_loss(
    params: Params,
    hidden_BTC: jax.Array,
    targets_BT: jax.Array,
    context: ForwardContext,
    reduction: Literal["mean", "none"] = "mean",
) -> jax.Array:
    config = context.config
    with jax.named_scope("lm_head"):
        return cross_entropy(
            hidden_BTC, params["lm_head.weight"], targets_BT, vocab_size=config.vocab_size,
            softcap=config.logit_softcap, chunk=context.run.loss_chunk, mesh=context.mesh,
            reduction=reduction,
        )  # fmt: skip


def _multi_token_loss(
    params: Params, hidden_BTC: jax.Array, targets_BT: jax.Array, shares: jax.Array, context: ForwardContext
) -> jax.Array:
    """Mean loss of the heads that predict further tokens, each of which goes on from the one before it."""
    depth = _heads(context.config)
    plain = replace(context, config=context.config.multi_token_block())
    (kind,) = layer_kinds(plain.config)
    total = jnp.zeros(())
    for head, (next_ids_BT, further_BT) in enumerate(shifted_targets(targets_BT, depth)):
        with jax.named_scope(f"multi_token_{head}"):
            weights = subtree(params, f"multi_token.{head}.")
            both = jnp.concatenate((hidden_BTC, _embed(params, next_ids_BT, context)), axis=-1)
            merged_BTC = constrain_activations(linear(both, weights["merge.weight"]), context)
            run = remat(partial(block, kind=kind, context=plain), context.run, in_loop=False)
            states_BTC, _ = run(subtree(weights, "block."), merged_BTC)
            hidden_BTC = norm(states_BTC)
            total = total + shares[head] * _head_loss(params, hidden_BTC, further_BT, context) / depth
    return total


def _heads(config: ModelConfig) -> int:
    """The number of heads that predict further tokens."""
    return config.mtp.depth if config.mtp else 0


def count_targets(targets_BT: jax.Array, config: ModelConfig) -> jax.Array:
    """Targets that count, for the next token and for each head that predicts further ones, float32."""
    further = [further_BT for _, further_BT in shifted_targets(targets_BT, _heads(config))]
    return jnp.stack([(each != IGNORE_INDEX).sum(dtype=jnp.float32) for each in (targets_BT, *further)])


def shifted_targets(targets_BT: jax.Array, depth: int) -> Iterator[tuple[jax.Array, jax.Array]]:
    """For each head, the ids that it is told and the targets that it has, both BT.

    A head has a target where all tokens up to it are known: none is ignored, none lies behind the row's end.
    """
    known_BT = targets_BT
    for _ in range(depth):
        beyond_BT = jnp.pad(known_BT[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORE_INDEX)
        target_BT = jnp.where(known_BT == IGNORE_INDEX, IGNORE_INDEX, beyond_BT)
        yield jnp.maximum(known_BT, 0), target_BT
        known_BT = target_BT
