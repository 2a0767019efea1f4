"""The loss of every single token, for validation, without ever holding all logits.

Shapes: B batch, T tokens, N rows, M rows of a chunk, C width, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cpplm.jax.attention.layer import ForwardContext
from cpplm.jax.layers import Params, rotary_angles
from cpplm.jax.mesh_axes import BATCH, CONTEXT, per_shard
from cpplm.jax.model import hidden_states, logits
from cpplm.jax.settings import RunSettings
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.special_tokens import IGNORE_INDEX


def token_losses(
    params: Params,
    ids_BT: jax.Array,
    targets_BT: jax.Array,
    config: ModelConfig,
    run: RunSettings,
    *,
    mesh: Mesh | None = None,
) -> jax.Array:
    """Cross-entropy of each next token in nats, BT, float32; 0 where the target is `IGNORE_INDEX`.

    Args:
        params: all weights.
        ids_BT: tokens.
        targets_BT: the token that follows each.
        config: of the model.
        run: how it is computed; of logits, `loss_chunk` rows are held at once, on each chip.
        mesh: of chips.
    """
    angles = rotary_angles(ids_BT.shape[1], config.head_dim, config.rope_base)
    hidden_BTC, _ = hidden_states(params, ForwardContext(config, run, mesh, ids_BT, angles, None, False))

    def of_part(hidden_BTC: jax.Array, weight_VC: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array]:
        count = targets_BT.size
        chunk = min(run.loss_chunk, count)
        padding = -count % chunk
        hidden_NC = jnp.pad(hidden_BTC.reshape(count, -1), ((0, padding), (0, 0)))
        targets_N = jnp.pad(targets_BT.reshape(count), (0, padding), constant_values=IGNORE_INDEX)

        def of_chunk(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
            hidden_MC, targets_M = chunk
            logits_MV = logits({"lm_head.weight": weight_VC}, hidden_MC, config)
            own_M = jnp.take_along_axis(logits_MV, jnp.maximum(targets_M, 0)[:, None], axis=1)[:, 0]
            return jnp.where(targets_M != IGNORE_INDEX, jax.nn.logsumexp(logits_MV, axis=1) - own_M, 0.0)

        chunks = (hidden_NC.reshape(-1, chunk, hidden_NC.shape[1]), targets_N.reshape(-1, chunk))
        return (jax.lax.map(of_chunk, chunks).reshape(-1)[:count].reshape(targets_BT.shape),)

    rows = (BATCH, CONTEXT)
    apart = per_shard(of_part, mesh, in_axes=((*rows, None), (None, None), rows), out_axes=(rows,))
    (losses_BT,) = apart(hidden_BTC, params["lm_head.weight"], targets_BT)
    return losses_BT
