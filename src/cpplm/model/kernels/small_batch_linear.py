"""Layers of the transformer for a few tokens in bfloat16, on a CPU.

Such a product reads each weight once and does little with it, so its time is that of memory; and between two
products torch's operators take longer to call than to compute. `small_batch_linear.cpp` reads a weight once
for all tokens and does what stands before and behind a product in the same call. What torch rounds is rounded
there, too; only sums are in another order.

Shapes: C and E widths, H query heads, G key-value heads, D head width, S slots of a pool; "..." and T are
tokens, MOST_TOKENS in all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cpplm.model.kernels.cpp_extension import load_function

MAX_TOKENS = 3  # from four on, oneDNN's products are as quick


def supports(x: Tensor) -> bool:
    """True if these tokens, shape (..., C), are few, and there are kernels for them here."""
    few = x.dtype == torch.bfloat16 and x.numel() <= MAX_TOKENS * x.size(-1) and x.device.type == "cpu"
    return few and load_function("gemv", "ppppiiiii") is not None


def gemv(x: Tensor, weight_EC: Tensor, *, normalized: bool = False, residual: Tensor | None = None) -> Tensor:
    """`F.linear(x, weight_EC)`.

    Args:
        x: tokens, shape (..., C).
        weight_EC: contiguous.
        normalized: multiply `norm(x)` instead.
        residual: added to the product, shape (..., E).

    Returns:
        Shape (..., E).
    """
    height, width = weight_EC.shape
    x = x.contiguous()
    added = None if residual is None else residual.contiguous()
    output = x.new_empty(*x.shape[:-1], height)
    _function("gemv", "ppppiiiii")(
        x.data_ptr(), weight_EC.data_ptr(), None if added is None else added.data_ptr(), output.data_ptr(),
        x.numel() // width, width, height, normalized, torch.get_num_threads(),
    )  # fmt: skip
    return output


def fused_mlp(x: Tensor, up_EC: Tensor, down_CE: Tensor) -> Tensor:
    """`x + F.linear(F.relu(F.linear(norm(x), up_EC)).square(), down_CE)`, shape (..., C)."""
    hidden, width = up_EC.shape
    x = x.contiguous()
    output = torch.empty_like(x)
    _function("fused_mlp", "ppppiiii")(
        x.data_ptr(), up_EC.data_ptr(), down_CE.data_ptr(), output.data_ptr(),
        x.numel() // width, width, hidden, torch.get_num_threads(),
    )  # fmt: skip
    return output


def rms_norm(x: Tensor) -> Tensor:
    """`norm(x)`, shape (..., C)."""
    x = x.contiguous()
    output = torch.empty_like(x)
    width = x.size(-1)
    _function("rms_norm", "ppii")(x.data_ptr(), output.data_ptr(), x.numel() // width, width)
    return output


def rope_write_cache(
    projected: Tensor,
    value: Tensor,
    heads: int,
    angles: tuple[Tensor, Tensor],
    scale: float,
    slots: Tensor,
    keys_SGD: Tensor,
    values_SGD: Tensor,
) -> Tensor:
    """Queries, turned, normalized and scaled; keys, likewise, and values go where the cache has them.

    Args:
        projected: queries, then keys, shape (..., at least (H + G) * D), one token behind another.
        value: shape (..., G * D), likewise.
        heads: H.
        angles: of each token, as `rotary_angles` gives them.
        scale: of queries and keys.
        slots: where in the pools the tokens go, int64, one for each.
        keys_SGD: contiguous, written to.
        values_SGD: likewise.

    Returns:
        `norm(rotate(query, angles)) * scale`, shape (..., H, D).
    """
    _, groups, dim = keys_SGD.shape
    query = projected.new_empty(*projected.shape[:-1], heads, dim)
    cosines, sines = (part.contiguous() for part in angles)
    _function("rope_write_cache", "ppppppppiiiiiif")(
        projected.data_ptr(), value.data_ptr(), cosines.data_ptr(), sines.data_ptr(), slots.data_ptr(),
        query.data_ptr(), keys_SGD.data_ptr(), values_SGD.data_ptr(),
        slots.numel(), projected.stride(-2), value.stride(-2), heads, groups, dim, scale,
    )  # fmt: skip
    return query


def _function(name: str, arguments: str) -> Callable[..., None]:
    function = load_function(name, arguments)
    assert function is not None  # noqa: S101  (`supports` was asked)
    return function
