"""How the JAX model is computed; none of it changes what is computed, but for rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from cpplm.core.errors import UserError


@dataclass(frozen=True)
class RunSettings:
    """Hashable, so that it may be a static argument of a jitted function."""

    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of matrix products and of the residual stream; weights stay float32."""
    remat: Literal["none", "full", "dots", "attention"] = "none"
    """What of a layer is kept for the backward pass: all; nothing, all is computed again (full); the products
    with weights (dots); what attention gave (attention)."""
    loss_chunk: int = 1024
    """Rows of logits that one device holds at once."""
    attention: Literal["auto", "einsum", "jax", "splash", "pallas"] = "auto"
    """Attention kernel."""
    scan: bool = True
    """Compile layers that repeat once; otherwise each on its own."""
    sparse_block: int = 128
    """Queries whose scores sparse attention holds at once."""

    def __post_init__(self) -> None:
        for name in ("loss_chunk", "sparse_block"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a number from 1 up.")

    @property
    def dtype(self) -> jnp.dtype:
        """The compute dtype."""
        return jnp.dtype(self.compute_dtype)
