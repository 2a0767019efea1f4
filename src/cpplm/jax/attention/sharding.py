"""How the mesh divides attention, for kernels that run on each device alone.

Rows of a batch are divided by `data` and `fsdp`, heads by `model`, the tokens of a row by `context`. XLA
divides einsums by itself; a Pallas kernel is opaque to it and runs inside `jax.shard_map`.
"""

from __future__ import annotations

import math

from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cpplm.core.errors import UserError
from cpplm.jax.mesh_axes import BATCH, CONTEXT, MODEL, axis_size, partition_spec


def check_divides(mesh: Mesh, *, batch: int, length: int, heads: int, groups: int) -> None:
    """Refuse sizes that do not divide among the devices.

    Raises:
        UserError: one does not.
    """
    rows = math.prod(axis_size(mesh, axis) for axis in BATCH)
    for what, size, shards, axis in (
        ("rows of the batch", batch, rows, " x ".join(BATCH)),
        ("query heads", heads, axis_size(mesh, MODEL), MODEL),
        ("key-value heads", groups, axis_size(mesh, MODEL), MODEL),
        ("tokens of a row", length, axis_size(mesh, CONTEXT), CONTEXT),
    ):
        if size % shards:
            raise UserError(
                f"{size} {what} cannot be divided among the {shards} devices of the mesh axis {axis}",
                fix=f"Make their number a multiple of {shards}, or the axis smaller.",
            )


def heads_spec(mesh: Mesh, *, sequence: bool) -> P:
    """Partition of an array BHTD; with `sequence` its tokens are divided too."""
    return partition_spec(mesh, BATCH, MODEL, CONTEXT if sequence else None, None)


def document_spec(mesh: Mesh, *, sequence: bool) -> P:
    """Partition of an array BT."""
    return partition_spec(mesh, BATCH, CONTEXT if sequence else None)
