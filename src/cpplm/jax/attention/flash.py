"""JAX's older Pallas kernel for TPUs: causal attention over whole rows, no windows.

Kept to compare splash attention with; its compute does not shrink with a window, so it refuses one.
Shapes: B batch, T tokens, H query heads, G key-value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as flash_kernel
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cpplm.core.errors import UserError
from cpplm.jax.attention.dense import left_window
from cpplm.jax.mesh_axes import BATCH, CONTEXT, MODEL, axis_size

TILE = 128  # tokens


def flash_attention(
    query_BTHD: Array,
    key_BTGD: Array,
    value_BTGD: Array,
    *,
    window: int | None,
    document_ids: Array | None,
    mesh: Mesh | None,
    interpret: bool,
) -> Array:
    """Causal attention; arguments as in `splash_attention`. Grouped keys are copied for each query head.

    Raises:
        UserError: see `check_row`.
    """
    _, length, _, width = query_BTHD.shape
    check_row(length, window, axis_size(mesh, CONTEXT))

    def run(query_BHTD: Array, key_BGTD: Array, value_BGTD: Array, *documents: Array) -> Array:
        repeats = query_BHTD.shape[1] // key_BGTD.shape[1]
        key_BHTD, value_BHTD = (jnp.repeat(x, repeats, axis=1) for x in (key_BGTD, value_BGTD))
        segments = SegmentIds(q=documents[0], kv=documents[0]) if documents else None

        def call(*qkv: Array) -> Array:
            return flash_kernel(*qkv, segment_ids=segments, causal=True, sm_scale=width**-0.5)

        return (_interpreted(call) if interpret else call)(query_BHTD, key_BHTD, value_BHTD)

    arrays = tuple(x.transpose(0, 2, 1, 3) for x in (query_BTHD, key_BTGD, value_BTGD))
    if document_ids is not None:
        arrays += (document_ids.astype(jnp.int32),)
    if mesh is not None:
        spec = P(BATCH, MODEL)
        specs = (spec, spec, spec, P(BATCH))[: len(arrays)]
        run = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    return run(*arrays).transpose(0, 2, 1, 3)


def check_row(length: int, window: int | None, sequence_shards: int) -> None:
    """Refuse what this kernel cannot do.

    Raises:
        UserError: a window, a context axis, or rows that are no multiple of 128 tokens.
    """
    if left_window(window, length) is not None:
        raise UserError(
            f"pallas attention is causal only, it has no window ({window} of {length} tokens)",
            fix="Use splash, or a --window_pattern of L.",
        )
    if length % TILE:
        raise UserError(
            f"pallas attention needs rows of a multiple of {TILE} tokens, not {length}", fix="Use splash."
        )
    if sequence_shards > 1:
        raise UserError("pallas attention cannot divide a row on the context axis", fix="Use splash.")


def _interpreted(call: Callable[..., Array]) -> Callable[..., Array]:
    """Both passes in interpret mode, which this kernel knows as a context only."""

    @jax.custom_vjp
    def wrapped(*qkv: Array) -> Array:
        with pltpu.force_tpu_interpret_mode():
            return call(*qkv)

    def forward(*qkv: Array) -> tuple[Array, Any]:
        with pltpu.force_tpu_interpret_mode():
            return jax.vjp(call, *qkv)

    def backward(pull: Any, cotangent: Array) -> tuple[Array, ...]:
        with pltpu.force_tpu_interpret_mode():
            return pull(cotangent)

    wrapped.defvjp(forward, backward)
    return wrapped
