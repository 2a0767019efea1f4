"""Cross-entropy of a linear output head over a large vocabulary, without ever holding all logits.

    logits = softcap * tanh(hidden @ weight[:vocab_size].T / softcap)

or without a cap where it is 0. A chunk of rows at a time, logits and their gradient are computed, multiplied
into the gradients of hidden states and weight, and forgotten: in the forward pass, so that logits are
computed once (as in Liger, Hsu et al. 2024, arXiv 2410.10989, section 3.2). On a mesh each device cuts its
own part of batch and sequence into chunks: chunks of the whole sequence would have to be gathered one by one,
and gradients of the weight be summed over all devices in each.

Shapes: B batch, T tokens, N rows, M rows of a chunk, C width, V vocabulary with its padding.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cpplm.jax.mesh_axes import BATCH, CONTEXT, per_shard
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

Pair = tuple[jax.Array, jax.Array]


def cross_entropy(
    hidden_BTC: jax.Array,
    weight_VC: jax.Array,
    targets_BT: jax.Array,
    *,
    vocab_size: int,
    softcap: float,
    chunk: int,
    mesh: Mesh | None,
    reduction: Literal["mean", "none"] = "mean",
) -> jax.Array:
    """Cross-entropy in nats, float32.

    Args:
        hidden_BTC: states before the output head; products are in their dtype, all behind in float32.
        weight_VC: the head's; rows from `vocab_size` on are padding and take no part.
        targets_BT: ids below `vocab_size`, or `IGNORE_INDEX`, which counts nothing.
        vocab_size: rows of the weight that are tokens.
        softcap: logits lie between this and its negative; 0 is no cap.
        chunk: rows of logits held at once, on each device.
        mesh: of devices.
        reduction: "mean" over the targets that count, 0 when none does; "none", for validation, gives the
            loss of each token, BT, 0 where it does not count.
    """

    def sum_of_part(hidden_BTC: jax.Array, weight_VC: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array]:
        chunks = _chunks(hidden_BTC, targets_BT, chunk)
        return (_sum_of_chunks(vocab_size, softcap, weight_VC, *chunks).reshape(1, 1),)

    def each_of_part(hidden_BTC: jax.Array, weight_VC: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array]:
        def of_chunk(chunk: Pair) -> jax.Array:
            return _losses(chunk[0], weight_VC.astype(chunk[0].dtype), chunk[1], vocab_size, softcap)[0]

        losses_N = jax.lax.map(of_chunk, _chunks(hidden_BTC, targets_BT, chunk)).reshape(-1)
        return (losses_N[: targets_BT.size].reshape(targets_BT.shape),)

    # On each device its part of batch and sequence, with the whole weight.
    rows = P(BATCH, CONTEXT)
    of_part = sum_of_part if reduction == "mean" else each_of_part
    each = per_shard(of_part, mesh, in_specs=(rows, P(), rows), out_specs=(rows,))
    (found,) = each(hidden_BTC, weight_VC, targets_BT)
    if reduction == "none":
        return found
    return found.sum() / jnp.maximum((targets_BT != IGNORE_INDEX).sum(), 1)


def _chunks(hidden_BTC: jax.Array, targets_BT: jax.Array, chunk: int) -> Pair:
    """Hidden states and targets cut into chunks, which a dimension in front counts."""
    count = targets_BT.size
    chunk = min(chunk, count)
    padding = -count % chunk
    hidden_NC = jnp.pad(hidden_BTC.reshape(count, -1), ((0, padding), (0, 0)))
    targets_N = jnp.pad(targets_BT.reshape(count), (0, padding), constant_values=IGNORE_INDEX)
    return hidden_NC.reshape(-1, chunk, hidden_NC.shape[1]), targets_N.reshape(-1, chunk)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum_of_chunks(
    vocab_size: int, softcap: float, weight_VC: jax.Array, hidden: jax.Array, targets: jax.Array
) -> jax.Array:
    """Hidden states and targets have a dimension in front that counts chunks."""
    weight = weight_VC.astype(hidden.dtype)

    def add(total: jax.Array, chunk: Pair) -> tuple[jax.Array, None]:
        loss_M, _ = _losses(chunk[0], weight, chunk[1], vocab_size, softcap)
        return total + loss_M.sum(), None

    return jax.lax.scan(add, jnp.zeros(()), (hidden, targets))[0]


def _forward(
    vocab_size: int, softcap: float, weight_VC: jax.Array, hidden: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    """The sum, and its gradients, which the backward pass only scales."""
    weight = weight_VC.astype(hidden.dtype)

    def add(sums: Pair, chunk: Pair) -> tuple[Pair, jax.Array]:
        total, of_weight_VC = sums
        hidden_MC, targets_M = chunk
        loss_M, of_product_MV = _losses(hidden_MC, weight, targets_M, vocab_size, softcap)
        of_product_MV = of_product_MV.astype(hidden_MC.dtype)
        of_weight_VC += jnp.einsum("mv,mc->vc", of_product_MV, hidden_MC, preferred_element_type=jnp.float32)
        return (total + loss_M.sum(), of_weight_VC), of_product_MV @ weight

    start = (jnp.zeros(()), jnp.zeros(weight_VC.shape, jnp.float32))
    (total, of_weight_VC), of_hidden = jax.lax.scan(add, start, (hidden, targets))
    return total, (of_weight_VC.astype(weight_VC.dtype), of_hidden, targets)


def _backward(
    vocab_size: int, softcap: float, kept: tuple[jax.Array, jax.Array, jax.Array], upstream: jax.Array
) -> tuple[jax.Array, jax.Array, Any]:
    del vocab_size, softcap
    of_weight_VC, of_hidden, targets = kept
    nothing = np.zeros(targets.shape, jax.dtypes.float0)
    return of_weight_VC * upstream, (of_hidden * upstream).astype(of_hidden.dtype), nothing


_sum_of_chunks.defvjp(_forward, _backward)


def _losses(
    hidden_MC: jax.Array, weight_VC: jax.Array, targets_M: jax.Array, vocab_size: int, softcap: float
) -> tuple[jax.Array, jax.Array]:
    """Losses of rows, and their gradients in the products, (p - onehot) * (1 - tanh^2), shape MV; float32."""
    product_MV = jnp.einsum("mc,vc->mv", hidden_MC, weight_VC, preferred_element_type=jnp.float32)
    logits_MV, slope_MV = product_MV, jnp.ones(())
    if softcap:
        capped_MV = jnp.tanh(product_MV / softcap)
        logits_MV, slope_MV = softcap * capped_MV, 1 - jnp.square(capped_MV)
    ids_V = jnp.arange(weight_VC.shape[0])
    logits_MV = jnp.where(ids_V < vocab_size, logits_MV, -jnp.inf)
    log_sum_M1 = jax.nn.logsumexp(logits_MV, axis=1, keepdims=True)
    of_target_MV = targets_M[:, None] == ids_V  # none where ignored, for that is no id
    counted_M1 = (targets_M != IGNORE_INDEX)[:, None]
    own_M1 = jnp.where(of_target_MV, logits_MV, 0.0).sum(1, keepdims=True)
    loss_M1 = jnp.where(counted_M1, log_sum_M1 - own_M1, 0.0)
    excess_MV = jnp.exp(logits_MV - log_sum_M1) - of_target_MV
    of_product_MV = jnp.where(counted_M1, excess_MV * slope_MV, 0.0)
    return loss_M1[:, 0], of_product_MV
