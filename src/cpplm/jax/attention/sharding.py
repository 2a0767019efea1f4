"""Mesh axes that divide attention, and the specs that a kernel needs to run on each device alone.

Rows of a batch are divided by `data` and `fsdp`, heads by `model`, the tokens of a row by `context`. XLA
divides einsums by itself; a Pallas kernel is opaque to it and runs inside `jax.shard_map`.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cpplm.core.errors import UserError
from cpplm.jax.mesh_axes import BATCH, CONTEXT, MODEL


@dataclass(frozen=True)
class AttentionSharding:
    """Axes of a mesh by what they divide; None or empty where the mesh has no such axis."""

    batch: tuple[str, ...]
    heads: str | None
    sequence: str | None
    batch_shards: int
    head_shards: int
    sequence_shards: int

    @classmethod
    def of(cls, mesh: Mesh) -> AttentionSharding:
        """The axes of this mesh."""
        size = dict(mesh.shape)
        batch = tuple(axis for axis in BATCH if axis in size)
        shards = 1
        for axis in batch:
            shards *= size[axis]
        return cls(
            batch=batch,
            heads=MODEL if MODEL in size else None,
            sequence=CONTEXT if CONTEXT in size else None,
            batch_shards=shards,
            head_shards=size.get(MODEL, 1),
            sequence_shards=size.get(CONTEXT, 1),
        )

    def check(self, *, batch: int, length: int, heads: int, groups: int) -> None:
        """Refuse sizes that do not divide among the devices.

        Raises:
            UserError: one does not.
        """
        for what, size, shards, axis in (
            ("rows of the batch", batch, self.batch_shards, " x ".join(BATCH)),
            ("query heads", heads, self.head_shards, MODEL),
            ("key-value heads", groups, self.head_shards, MODEL),
            ("tokens of a row", length, self.sequence_shards, CONTEXT),
        ):
            if size % shards:
                raise UserError(
                    f"{size} {what} cannot be divided among the {shards} devices of the mesh axis {axis}",
                    fix=f"Make their number a multiple of {shards}, or the axis smaller.",
                )

    def spec(self, *, sequence: bool) -> P:
        """Partition of an array BHTD; with `sequence` its tokens are divided too."""
        return P(self.batch, self.heads, self.sequence if sequence else None, None)

    def document_spec(self, *, sequence: bool) -> P:
        """Partition of an array BT."""
        return P(self.batch, self.sequence if sequence else None)
