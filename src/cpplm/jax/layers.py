"""Layers that every part of the JAX model is made of.

Shapes: B batch, T tokens, C model_dim, H heads, D head_dim. Weights have torch's layout, (out, in).
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cpplm.jax.mesh_axes import BATCH, CONTEXT, MODEL, constrain
from cpplm.model.config import NORM_EPSILON

Params = dict[str, jax.Array]
"""Weights by name."""


def subtree(weights: Params, prefix: str) -> Params:
    """The weights whose names start so, without the prefix."""
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    """(..., in) to (..., out) in the dtype of `x`."""
    return jnp.einsum("...i,oi->...o", x, weight.astype(x.dtype))


def norm(x: jax.Array, axes: int | tuple[int, ...] = -1) -> jax.Array:
    """RMSNorm over dimensions, the last one unless told, without weights; computed in float32."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=axes, keepdims=True) + NORM_EPSILON)
    return (wide * scale).astype(x.dtype)


def scale_by(x: jax.Array, scale: jax.Array) -> jax.Array:
    """`x` times a learned scalar, in the dtype of `x`.

    Multiplied in float32: a scalar rounded to bfloat16 first has a gradient that is some ten percent off.
    """
    return (scale.astype(jnp.float32) * x.astype(jnp.float32)).astype(x.dtype)


def shift_right(x: jax.Array, distance: int, documents_BT: jax.Array | None = None) -> jax.Array:
    """Move each token so many places to the right; zeros come in at the start, and at that of documents."""
    if distance == 0:
        return x
    padding = [(0, 0), (distance, 0)] + [(0, 0)] * (x.ndim - 2)
    moved = jax.lax.slice_in_dim(jnp.pad(x, padding), 0, x.shape[1], axis=1)
    if documents_BT is None:
        return moved
    same_BT = shift_right(documents_BT + 1, distance) == documents_BT + 1
    return jnp.where(same_BT.reshape(*same_BT.shape, *[1] * (x.ndim - 2)), moved, 0)


Angles = tuple[jax.Array, jax.Array]
"""Cosines and sines, each of shape (T, D / 2), float32."""


def rotary_angles(length: int, head_dim: int, base: float) -> Angles:
    """Angles of the positions from 0 on."""
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * jnp.float32(base) ** -exponents
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BTHD: jax.Array, angles: Angles) -> jax.Array:
    """Turn pairs (i, i + D/2) by the position's angles (RoFormer, Su et al. 2021, section 3.2)."""
    cos, sin = (table[:, None, :] for table in angles)
    first, second = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate((first * cos + second * sin, second * cos - first * sin), axis=-1)
    return turned.astype(x_BTHD.dtype)


def mlp(weights: Params, x_BTC: jax.Array, kind: Literal["relu2", "swiglu"], mesh: Mesh | None) -> jax.Array:
    """BTC to BTC, each token alone: a squared ReLU, or SwiGLU, between two matrices; see `cpplm.model`."""
    hidden = linear(x_BTC, weights["up.weight"])
    if kind == "swiglu":
        hidden = jax.nn.silu(linear(x_BTC, weights["gate.weight"])) * hidden
    else:
        hidden = jnp.square(jax.nn.relu(hidden))
    hidden = constrain(hidden, BATCH, CONTEXT, MODEL, mesh=mesh)
    return linear(hidden, weights["down.weight"])
