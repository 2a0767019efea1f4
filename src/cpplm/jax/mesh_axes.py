"""Names of the mesh's axes, and how arrays lie on them.

data and fsdp divide the rows of a batch (fsdp the weights, too), context the positions of a row, model the
heads and the width of the MLP. Every mesh has all of them (`cpplm.jax.mesh.make_mesh`), some of which are 1.
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


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None, mesh: Mesh | None) -> jax.Array:
    """The array, laid out as named; the array itself without a mesh.

    Args:
        x: with as many dimensions as there are axes.
        axes: for each dimension, over which axes of the mesh it is divided.
        mesh: of devices.
    """
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))


def per_shard(
    function: Callable[..., Any], mesh: Mesh | None, in_specs: tuple[P, ...], out_specs: tuple[P, ...]
) -> Callable[..., Any]:
    """The function on each device's part of batch and sequence; the function itself where there is one part.

    Inside, the axes data, fsdp and context are the function's own affair; model stays the compiler's, where
    it divides anything.

    Args:
        function: of arrays, to a tuple of arrays.
        mesh: of devices.
        in_specs: for each argument, what its dimensions are divided over.
        out_specs: for each result, likewise.
    """
    if mesh is None or mesh.size == mesh.shape[MODEL]:
        return function  # beside axes of 1 the compiler cannot divide a loop over `model`
    own = {name for name in mesh.axis_names if name != MODEL or mesh.shape[name] == 1}
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=own, check_vma=False
    )


def axis_size(mesh: Mesh | None, axis: str) -> int:
    """Number of parts into which an axis divides."""
    return 1 if mesh is None else mesh.shape[axis]
