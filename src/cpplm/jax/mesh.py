"""The mesh of chips, and how batch, weights and optimizer state lie on it.

The axes are those of `cpplm.jax.mesh_axes`. A weight is divided over `model` as its heads or hidden
units are, and over `fsdp` along its longest other dimension. Optimizer state lies as its weight does and is
divided over `data`, too (ZeRO stage 1, Rajbhandari et al. 2020, arXiv 1910.02054). The dimension that counts
layers of a stacked weight is never divided, for the loop over the layers cuts it; that of Muon's momentum is,
see `cpplm.jax.optimizer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cpplm.core.errors import UserError
from cpplm.core.workers import partition_by_size
from cpplm.jax.mesh_axes import BATCH, CONTEXT
from cpplm.jax.param_stacking import is_stacked
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.layers import plain_name
from cpplm.train.settings import MESH_AXES

# Last parts of the names of weights whose rows, and whose columns, belong to heads or hidden units.
ROW_SHARDED = ("attention.query.weight", "attention.key.weight", "attention.value.weight", "mlp.up.weight",
           "mlp.gate.weight", "lm_head.weight")  # fmt: skip
COLUMN_SHARDED = ("attention.output.weight", "attention.value_embedding.weight", "mlp.down.weight")
MIN_SHARDED_SIZE = 2**16  # elements; smaller weights and states stay whole, which saves messages


def mesh_sizes(named: Mapping[str, int], chips: int) -> dict[str, int]:
    """Chips per axis; `data` gets what the named axes leave.

    Raises:
        UserError: more chips are named than there are, or the others cannot be divided evenly.
    """
    taken = math.prod(named.values())
    said = " x ".join(f"{axis} {size}" for axis, size in named.items())
    if taken > chips:
        raise UserError(
            f"--mesh asks for {said} = {taken} chips, and there are {chips}", fix="Name fewer in --mesh."
        )
    if "data" not in named and chips % taken:
        raise UserError(
            f"--mesh {said} does not divide the {chips} chips", fix="Name data as well, to leave some out."
        )
    sizes = {"data": chips // taken, **named}
    return {axis: sizes.get(axis, 1) for axis in MESH_AXES}


def make_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of the first chips, in an order that suits how they are wired."""
    count = math.prod(sizes.values())
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), types, devices=devices[:count])


def check_mesh(sizes: Mapping[str, int], config: ModelConfig, row_lengths: Sequence[int]) -> None:
    """Refuse a mesh that does not divide what it has to.

    Raises:
        UserError: heads or hidden units over `model`, or a row length over `context`.
    """
    model, context = sizes["model"], sizes["context"]
    for number, what in (
        (config.num_heads, "attention heads"),
        (config.num_kv_heads, "key-value heads"),
        (config.mlp_dim, "hidden units of the MLP"),
    ):
        if number % model:
            raise UserError(
                f"--mesh model={model} does not divide the {number} {what}",
                fix="Use a divisor, or leave it out.",
            )
    for length in row_lengths:
        if length % context:
            raise UserError(
                f"--mesh context={context} does not divide rows of {length} tokens",
                fix="Use a divisor of --max_seq_len and --short_seq_len.",
            )


def weight_spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Partition of a weight of the JAX model."""
    axes: list[Any] = [None] * len(shape)
    free = list(range(1 if is_stacked(name) else 0, len(shape)))
    if len(free) < 2 or math.prod(shape) < MIN_SHARDED_SIZE // 16:
        return P()
    name = plain_name(name)
    by_model = -2 if name.endswith(ROW_SHARDED) else -1 if name.endswith(COLUMN_SHARDED) else None
    if by_model is not None and mesh.shape["model"] > 1 and shape[by_model] % mesh.shape["model"] == 0:
        axes[by_model] = "model"
        free.remove(len(shape) + by_model)
    _divide(axes, shape, free, "fsdp", mesh)
    return P(*axes)


def state_spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Partition of a state of a weight, with as many dimensions as it."""
    whole = weight_spec(name, shape, mesh)
    if math.prod(shape) < MIN_SHARDED_SIZE:
        return whole
    axes = [*whole, *[None] * (len(shape) - len(whole))]
    _divide(axes, shape, [at for at, axis in enumerate(axes) if axis is None], "data", mesh)
    return P(*axes)


def layers_spec(layers: int, mesh: Mesh) -> P:
    """The dimension that counts layers over as many chips as divide it evenly."""
    best: tuple[str, ...] = ()
    for end in range(len(MESH_AXES) + 1):
        axes = tuple(axis for axis in MESH_AXES[:end] if mesh.shape[axis] > 1)
        if layers % math.prod(mesh.shape[axis] for axis in axes) == 0:
            best = axes
    return P(best) if best else P()


def _divide(axes: list[Any], shape: tuple[int, ...], free: list[int], name: str, mesh: Mesh) -> None:
    """Put an axis of the mesh on the longest free dimension that it divides, if there is one."""
    size = mesh.shape[name]
    fitting = [at for at in free if shape[at] % size == 0]
    if size > 1 and fitting:
        axes[max(fitting, key=lambda at: (shape[at], -at))] = name


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of tokens and targets, shape BT."""
    return NamedSharding(mesh, P(BATCH, CONTEXT))


def rows_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of results for each host, shape BT: rows divided as a batch's are, none of them cut.

    Chips of other hosts may have computed parts of a row.
    """
    return NamedSharding(mesh, P(BATCH, None))


def put_on_mesh(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every host has whole, on the chips: each host sends its own chips their parts."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def gather_host_share(
    arrays: Mapping[str, jax.Array], members: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray]:
    """Those layers, or arrays without layers, that `partition_by_size` deals this host by their sizes, whole.

    All hosts must call it. No host, and no chip, holds more than one of `arrays` whole, besides its share.

    Args:
        arrays: weights or optimizer state, as they lie on the chips of all hosts.
        members: for each array, what its layers are called, see `cpplm.jax.param_stacking.checkpoint_names`.
    """
    sizes = {name: arrays[key].nbytes // len(names) for key, names in members.items() for name in names}
    own = set(partition_by_size(sizes, jax.process_count())[jax.process_index()])
    alone, found = jax.process_count() == 1, {}
    for key, names in members.items():
        whole = _gather(arrays[key])
        for index, name in enumerate(names):
            if name in own:
                part = whole[index] if is_stacked(key) else whole
                found[name] = part if alone else part.copy()  # which lets go of what is others'
    return found


def _gather(array: jax.Array) -> np.ndarray:
    """An array of all hosts in the memory of this one."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


@dataclass(frozen=True)
class HostBatchSharder:
    """The rows of a batch that this host reads, and their way to the chips.

    Hosts that compute the same rows, because `context` or `model` go across them, read the same.

    Attributes:
        batch_shards: parts into which the rows of a batch are divided.
        reader_index: number of this host's rows among those of all hosts.
        num_readers: how many different rows hosts read.
    """

    batch_shards: int
    reader_index: int
    num_readers: int

    @classmethod
    def of(cls, mesh: Mesh) -> HostBatchSharder:
        """That of this process.

        Raises:
            UserError: some of two hosts' rows are the same, and some are not; or a host has nothing to do.
        """
        by_process: dict[int, set[int]] = {}
        for position, device in np.ndenumerate(mesh.devices):
            shard = position[0] * mesh.shape["fsdp"] + position[1]  # MESH_AXES begin with data, fsdp
            by_process.setdefault(device.process_index, set()).add(shard)
        if len(by_process) < jax.process_count():
            raise UserError(
                f"--mesh leaves out all chips of {jax.process_count() - len(by_process)} hosts",
                fix=f"Start it on {len(by_process)} hosts, or name more chips in --mesh.",
            )
        sets = sorted({tuple(sorted(shards)) for shards in by_process.values()})
        shards = mesh.shape["data"] * mesh.shape["fsdp"]
        if sum(map(len, sets)) != shards or len({len(own) for own in sets}) > 1:
            raise UserError(
                "--mesh divides the batch so that hosts share some of their rows only",
                fix="Make the chips of data and fsdp a multiple of the hosts, or a divisor.",
            )
        own = tuple(sorted(by_process[jax.process_index()]))
        return cls(shards, sets.index(own), len(sets))

    def shard(self, rows: np.ndarray, mesh: Mesh) -> jax.Array:
        """The whole batch on the chips of all hosts.

        Args:
            rows: of this host, shape BT of its part.
            mesh: all chips.
        """
        shape = (len(rows) * self.num_readers, rows.shape[1])
        return jax.make_array_from_process_local_data(batch_sharding(mesh), rows, shape)


def host_rows(array: jax.Array) -> np.ndarray:
    """This host's rows of something that lies as `rows_sharding` says, shape BT."""
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])
