"""Names of the mesh's axes, and how arrays lie on them.

data and fsdp divide the rows of a batch (fsdp the weights, too), context the positions of a row, model the
heads and the width of the MLP. Any of them may be missing from a mesh, or be 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

BATCH = ("data", "fsdp")
CONTEXT = "context"
MODEL = "model"

Axis = str | tuple[str, ...] | None
"""Mesh axes over which one dimension is divided."""


def partition_spec(mesh: Mesh, *axes: Axis) -> P:
    """The partition of an array whose dimensions are divided over these axes; those not in the mesh are
    left out."""
    return P(*(_present(mesh, axis) for axis in axes))


def constrain(x: jax.Array, *axes: Axis, mesh: Mesh | None) -> jax.Array:
    """The array, laid out as named; the array itself without a mesh.

    Args:
        x: with as many dimensions as there are axes.
        axes: for each dimension, over which axes of the mesh it is divided.
        mesh: of devices.
    """
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition_spec(mesh, *axes)))


def per_shard(
    function: Callable[..., Any],
    mesh: Mesh | None,
    in_axes: tuple[tuple[Axis, ...], ...],
    out_axes: tuple[tuple[Axis, ...], ...],
) -> Callable[..., Any]:
    """The function on each device's part of batch and sequence; the function itself where there is one part.

    Inside, the axes data, fsdp and context are the function's own affair; model stays the compiler's, where
    it divides anything.

    Args:
        function: of arrays, to a tuple of arrays.
        mesh: of devices.
        in_axes: for each argument, what its dimensions are divided over.
        out_axes: for each result, likewise.
    """
    if mesh is None or mesh.size == mesh.shape.get(MODEL, 1):
        return function  # beside axes of 1 the compiler cannot divide a loop over `model`
    own = {name for name in mesh.axis_names if name != MODEL or mesh.shape[name] == 1}
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(partition_spec(mesh, *axes) for axes in in_axes),
        out_specs=tuple(partition_spec(mesh, *axes) for axes in out_axes),
        axis_names=own,
        check_vma=False,
    )


def axis_size(mesh: Mesh | None, axis: str) -> int:
    """Number of parts into which an axis divides."""
    return 1 if mesh is None else mesh.shape.get(axis, 1)


def _present(mesh: Mesh, axis: Axis) -> Axis:
    if isinstance(axis, tuple):
        return tuple(name for name in axis if name in mesh.axis_names) or None
    return axis if axis in mesh.axis_names else None
