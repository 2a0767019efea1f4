"""Settings of `cpplm train` that only JAX reads. Without jax: the command line knows them anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpplm.core.errors import UserError

AXES = ("data", "fsdp", "context", "model")
"""Of a mesh, from the one whose chips may be far apart to the one whose chips must be near each other."""


@dataclass(frozen=True)
class JaxSettings:
    """How a model is computed on TPUs, and how it is divided among their chips."""

    mesh: str = ""
    """JAX: chips per axis, as data=2,context=4. data and fsdp divide the batch, fsdp also weights and
    optimizer state, context the positions of a row, model the heads; chips not named go to data."""
    multi_host: bool = False
    """JAX: several hosts train together; start the same command on each."""
    jax_attention: Literal["auto", "einsum", "jax", "splash", "pallas"] = "auto"
    """JAX: attention kernel."""
    remat: Literal["none", "full", "dots", "attention"] = "none"
    """JAX: what of a layer is computed again in the backward pass: nothing, all, all but products with
    weights, all but what attention gave."""
    loss_chunk: int = 1024
    """JAX: rows of logits that one chip holds at once."""

    def __post_init__(self) -> None:
        self.axes()
        if self.loss_chunk < 1:
            raise UserError(f"--loss_chunk {self.loss_chunk}", fix="Use a number from 1 up.")

    def axes(self) -> dict[str, int]:
        """Chips per axis, those that are named.

        Raises:
            UserError: not of the form name=chips, an unknown axis, or one named twice.
        """
        found: dict[str, int] = {}
        for entry in filter(None, self.mesh.split(",")):
            name, equals, chips = (part.strip() for part in entry.partition("="))
            if name not in AXES or not equals or not chips.isdecimal() or int(chips) < 1:
                raise UserError(
                    f"--mesh {self.mesh!r}: {entry!r} is not an axis with its chips",
                    fix=f"Use {', '.join(AXES)}, as in data=2,context=4.",
                )
            if name in found:
                raise UserError(f"--mesh {self.mesh!r} names {name} twice", fix="Name each axis once.")
            found[name] = int(chips)
        return found
