"""Settings of how the JAX model is computed; none of it changes what is computed, but for rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from cpplm.train.settings import JaxSettings


@dataclass(frozen=True)
class RunSettings(JaxSettings):
    """`JaxSettings` and what follows from the devices. A static argument of jitted functions: hashable."""

    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Dtype of matrix products and of the residual stream; weights stay float32."""
    sparse_block: int = 128
    """Queries whose scores sparse attention holds at once."""

    @property
    def dtype(self) -> jnp.dtype:
        """The compute dtype."""
        return jnp.dtype(self.compute_dtype)
