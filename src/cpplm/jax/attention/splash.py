"""Splash attention: JAX's Pallas kernel for TPUs that leaves out the blocks which a window hides.

Forward and backward in O(T) memory; windows at the cost of what is visible, grouped heads without copies of
the keys, documents by segment ids. On a mesh it runs inside `jax.shard_map`: rows divided by data and fsdp,
heads by model, and with a context axis each device holds the queries of its part of the row and gathers the
keys and values of the whole row (as Llama 3 trains, arXiv 2407.21783, section 3.3.2).

Seen to be right on CPU in interpret mode, and to compile for v5e and v6e; not seen to run on a TPU.

Shapes: B batch, T tokens, H query heads, G key-value heads, D head_dim.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    LocalMask,
    MultiHeadMask,
    SegmentIds,
    make_splash_mha,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cpplm.core.errors import UserError
from cpplm.jax.attention.dense import left_window
from cpplm.jax.mesh_axes import BATCH, CONTEXT, MODEL, axis_size

LANES = 128  # the kernel works on tiles of so many tokens
BLOCKS = (512, 256, LANES)  # queries and keys per step of the grid, the largest that divides the row


def splash_attention(
    query_BTHD: Array,
    key_BTGD: Array,
    value_BTGD: Array,
    *,
    window: int | None,
    document_ids: Array | None,
    mesh: Mesh | None,
    interpret: bool,
) -> Array:
    """Causal attention; arguments as in `attend`.

    Rows that are no multiple of 128 tokens are padded; on a context axis they must divide evenly.

    Raises:
        UserError: see `padding_to_tiles`.
    """
    _, length, heads, width = query_BTHD.shape
    shards = axis_size(mesh, CONTEXT)
    padding = padding_to_tiles(length, shards)
    scaled = query_BTHD.astype(jnp.float32) * width**-0.5  # the kernel does not scale
    query_BHTD, key_BGTD, value_BGTD = (
        jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))).transpose(0, 2, 1, 3) if padding else
        x.transpose(0, 2, 1, 3) for x in (scaled.astype(query_BTHD.dtype), key_BTGD, value_BTGD)
    )  # fmt: skip
    if document_ids is not None:
        document_ids = jnp.pad(document_ids.astype(jnp.int32), ((0, 0), (0, padding)))
    left = left_window(window, length)
    kernel = _kernel(length + padding, left, heads, axis_size(mesh, MODEL), shards, interpret)
    if mesh is None:
        mixed_BHTD = _each_row(kernel, query_BHTD, key_BGTD, value_BGTD, document_ids, document_ids)
    else:
        mixed_BHTD = _on_mesh(kernel, mesh, query_BHTD, key_BGTD, value_BGTD, document_ids)
    return mixed_BHTD.transpose(0, 2, 1, 3)[:, :length]


def padding_to_tiles(length: int, sequence_shards: int) -> int:
    """Tokens to add so that each device has whole tiles.

    Raises:
        UserError: the row is divided among devices and does not come out even.
    """
    if sequence_shards > 1 and length % (LANES * sequence_shards):
        raise UserError(
            f"splash attention over {sequence_shards} devices of the context axis needs rows of a multiple "
            f"of {LANES * sequence_shards} tokens, not {length}",
            fix="Change --max_seq_len or the context axis.",
        )
    return -length % LANES


def _each_row(
    kernel: Any, query_BHTD: Array, key_BGSD: Array, value_BGSD: Array, documents_BT: Array | None,
    documents_BS: Array | None,
) -> Array:  # fmt: skip
    """The kernel knows one row; vmap adds the batch to its grid."""
    if documents_BT is None or documents_BS is None:
        return jax.vmap(kernel)(query_BHTD, key_BGSD, value_BGSD)
    segments = SegmentIds(q=documents_BT, kv=documents_BS)
    return jax.vmap(kernel)(query_BHTD, key_BGSD, value_BGSD, segments)


def _on_mesh(
    kernel: Any, mesh: Mesh, query_BHTD: Array, key_BGTD: Array, value_BGTD: Array,
    documents_BT: Array | None,
) -> Array:  # fmt: skip
    """Each device its rows, heads and queries. A spec without the context axis gathers keys and values, and
    in the backward pass sums their gradients over it."""
    kernel_spec = kernel.manual_sharding_spec(NamedSharding(mesh, P(MODEL, CONTEXT)))
    divided, whole = P(BATCH, MODEL, CONTEXT), P(BATCH, MODEL)
    arrays: tuple[Any, ...] = (kernel, query_BHTD, key_BGTD, value_BGTD)
    specs: tuple[Any, ...] = (kernel_spec, divided, whole, whole)
    if documents_BT is not None:
        arrays += (documents_BT, documents_BT)
        specs += (P(BATCH, CONTEXT), P(BATCH))

    def run(kernel: Any, *parts: Array) -> Array:
        query, key, value, *documents = parts
        own, all_ids = documents or (None, None)
        return _each_row(kernel, query, key, value, own, all_ids)

    sharded = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=divided, check_vma=False)
    return sharded(*arrays)


class _WindowMask(LocalMask):
    """`LocalMask` for the host that plans the grid: blocks seen wholly or not at all answer as one element.

    The plan asks every block of the mask whether any or all of it is visible. At 65,536 tokens those are
    16,384 blocks of 512 x 512, several times over: half a minute on one core, against a second this way.
    """

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        rows, columns = index
        nearest, farthest = rows.start - (columns.stop - 1), rows.stop - 1 - columns.start
        left = self.window_size[0]
        if farthest < 0 or (left is not None and nearest > left):
            return np.zeros((1, 1), bool)
        if nearest >= 0 and (left is None or farthest <= left):
            return np.ones((1, 1), bool)
        return super().__getitem__(index)


@functools.lru_cache(maxsize=64)
def _kernel(
    length: int, left: int | None, heads: int, head_shards: int, sequence_shards: int, interpret: bool
) -> Any:
    """A kernel with its plan of blocks, made once per window; its arrays are numpy's, to outlive a trace."""
    block = next(size for size in BLOCKS if length // sequence_shards % size == 0)
    mask = _WindowMask((length, length), (left, 0), 0)
    sizes = BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block,
        block_kv_dq=block,
    )  # fmt: skip
    with jax.ensure_compile_time_eval():
        kernel = make_splash_mha(
            MultiHeadMask([mask] * heads),
            block_sizes=sizes,
            head_shards=head_shards,
            q_seq_shards=sequence_shards,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)
